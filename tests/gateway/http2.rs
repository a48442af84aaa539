//! HTTP/2: what is sent as frames, and the same request path as in HTTP/1.1.

mod frames;
mod half_closed;
pub(crate) mod requests;
