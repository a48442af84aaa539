//! HTTP/2: what is sent as frames, and the same request path as in HTTP/1.1.

pub(crate) mod requests;
