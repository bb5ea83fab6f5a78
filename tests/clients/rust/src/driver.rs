// Makes the calls of client_driver.py with the official client for Rust: a line each. It has no
// recall, no change of a lease and no push consumer.
use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{MessageBuilder, MessageView};
use rocketmq::{Producer, SimpleConsumer};
use std::collections::HashMap;
use std::io::BufRead;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

type Given = HashMap<String, String>;

#[derive(Default)]
struct Driver {
    option: Option<ClientOption>,
    producers: HashMap<String, Producer>,
    consumers: HashMap<String, SimpleConsumer>,
    views: Vec<(String, MessageView)>,
}

fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()
}

fn failed(error: impl std::fmt::Debug) -> String {
    format!("{error:?}").split_whitespace().collect::<Vec<_>>().join(" ")
}

fn code_of(text: &str) -> u32 {
    let digits = |word: &&str| word.len() == 5 && word.bytes().all(|one| one.is_ascii_digit());
    text.split(|one: char| !one.is_ascii_alphanumeric())
        .find(digits)
        .and_then(|word| word.parse().ok())
        .unwrap_or(0)
}

impl Driver {
    async fn run(&mut self, verb: &str, given: Given) -> Result<(), String> {
        match verb {
            "configure" => {
                let mut option = ClientOption::default();
                option.set_access_url(given["address"].clone());
                option.set_enable_tls(given["tls"] == "1");
                option.set_timeout(Duration::from_secs(5));
                option.set_long_polling_timeout(Duration::from_secs(5));
                if let Some(key) = given.get("key") {
                    option.set_access_key(key.clone());
                    option.set_secret_key(given["secret"].clone());
                }
                self.option = Some(option);
                println!("ok");
            }
            "send" => self.send(given).await?,
            "receive" => self.receive(given).await?,
            "ack" => {
                let (name, view) = &self.views[given["n"].parse::<usize>().unwrap()];
                self.consumers[name].ack(view).await.map_err(failed)?;
                println!("ok");
            }
            "close" => {
                for (_, one) in self.consumers.drain() {
                    one.shutdown().await.map_err(failed)?;
                }
                for (_, one) in self.producers.drain() {
                    one.shutdown().await.map_err(failed)?;
                }
                println!("ok");
            }
            _ => return Err(format!("not in this client: {verb}")),
        }
        Ok(())
    }

    async fn send(&mut self, given: Given) -> Result<(), String> {
        let topic = given["topic"].clone();
        if !self.producers.contains_key(&topic) {
            let mut option = ProducerOption::default();
            option.set_topics(vec![topic.clone()]);
            let client = self.option.clone().unwrap();
            let mut made = Producer::new(option, client).map_err(failed)?;
            made.start().await.map_err(failed)?;
            self.producers.insert(topic.clone(), made);
        }
        let body = given["body"].clone().into_bytes();
        let mut message = match given.get("delay_ms") {
            Some(delay) => {
                let due_ms = now_ms() + delay.parse::<u128>().unwrap();
                let due_s = due_ms.div_ceil(1000) as i64; // the client sends whole seconds
                MessageBuilder::delay_message_builder(topic.clone(), body, due_s)
            }
            None => MessageBuilder::builder().set_topic(topic.clone()).set_body(body),
        };
        if let Some(tag) = given.get("tag") {
            message = message.set_tag(tag.clone());
        }
        if let Some(keys) = given.get("keys") {
            message = message.set_keys(keys.split(',').collect());
        }
        if let Some(properties) = given.get("properties") {
            let pairs = properties.split(',').map(|pair| pair.split_once(':').unwrap());
            message = message.set_properties(pairs.map(|(k, v)| (k.into(), v.into())).collect::<HashMap<String, String>>());
        }
        let sent = self.producers[&topic].send(message.build().map_err(failed)?).await;
        println!("ok\tid={}\thandle=", sent.map_err(failed)?.message_id());
        Ok(())
    }

    async fn receive(&mut self, given: Given) -> Result<(), String> {
        let (topic, group) = (given["topic"].clone(), given["group"].clone());
        let name = format!("{topic} {group}");
        if !self.consumers.contains_key(&name) {
            let mut option = SimpleConsumerOption::default();
            option.set_topics(vec![topic.clone()]);
            option.set_consumer_group(group);
            let client = self.option.clone().unwrap();
            let mut made = SimpleConsumer::new(option, client).map_err(failed)?;
            made.start().await.map_err(failed)?;
            self.consumers.insert(name.clone(), made);
        }
        let tag = given.get("tag").map(String::as_str).unwrap_or("*");
        let filter = FilterExpression::new(FilterType::Tag, tag);
        let lease = Duration::from_millis(given["lease_ms"].parse().unwrap());
        let count = given["count"].parse().unwrap();
        let found = self.consumers[&name]
            .receive_with(topic, &filter, count, lease)
            .await
            .map_err(failed)?;
        let received = found.len();
        for one in found {
            let properties: Vec<String> =
                one.properties().iter().map(|(k, v)| format!("{k}:{v}")).collect();
            println!(
                "message\tn={}\tid={}\tbody={}\ttag={}\tkeys={}\tproperties={}\tattempt={}\tat_ms={}\tdue_ms=0",
                self.views.len(), one.message_id(), String::from_utf8_lossy(one.body()),
                one.tag().unwrap_or(""), one.keys().join(","), properties.join(","),
                one.delivery_attempt(), now_ms(),
            );
            self.views.push((name.clone(), one));
        }
        println!("ok\tcount={received}");
        Ok(())
    }
}

#[tokio::main]
async fn main() {
    let mut driver = Driver::default();
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let mut words = line.split('\t');
        let verb = words.next().unwrap();
        let given = words.map(|word| word.split_once('=').unwrap());
        let given = given.map(|(name, value)| (name.into(), value.into())).collect();
        if let Err(text) = driver.run(verb, given).await {
            println!("error\tcode={}\ttext={text}", code_of(&text));
        }
    }
}
