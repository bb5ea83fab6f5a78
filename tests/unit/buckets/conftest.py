"""A server with the API of S3."""

from tests.support.bucket.fixtures import prefix, proxy, s3_endpoint

__all__ = ["prefix", "proxy", "s3_endpoint"]
