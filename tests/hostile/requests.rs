//! Requests made to poison the cache, to escape the base URL, or to loop.
