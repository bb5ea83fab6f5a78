"""Strategies for numbers, topics, properties and bodies, shared by the tests of formats."""

from hypothesis import strategies as st

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
NAT63 = st.integers(0, 2**63 - 1)
TOPIC = st.text("abcXYZ019_-%", min_size=1, max_size=255)
NAME = st.text(st.characters(min_codepoint=33, max_codepoint=0x2FF), min_size=3, max_size=8)
VALUE = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), min_size=1, max_size=30)
PROPERTIES = st.dictionaries(NAME, VALUE, max_size=6)
BODY = st.binary(max_size=300)
