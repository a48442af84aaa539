//! PROXY headers: a header is read at the same length however many bytes follow it, every
//! shorter part of it is incomplete, and its length is bounded.

#![no_main]

use std::io::{ErrorKind, Result};
use std::net::IpAddr;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use libfuzzer_sys::fuzz_target;
use ordgate::listener::proxy_header::{MAX_HEADER, read};

/// What is read, and the bytes that it takes. Bytes in memory never have to be waited for.
fn read_all(bytes: &[u8]) -> (Result<Option<IpAddr>>, usize) {
    let mut rest = bytes;
    let mut cx = Context::from_waker(Waker::noop());
    let Poll::Ready(read) = pin!(read(&mut rest)).poll(&mut cx) else {
        panic!("bytes in memory are waited for");
    };
    (read, bytes.len() - rest.len())
}

fuzz_target!(|bytes: &[u8]| {
    let (client, length) = read_all(bytes);
    assert!(length <= MAX_HEADER);
    let Ok(client) = client else { return };
    let (again, whole) = read_all(&bytes[..length]);
    assert_eq!((again.ok(), whole), (Some(client), length));
    for cut in 0..length {
        let (cut, _) = read_all(&bytes[..cut]);
        assert_eq!(cut.unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
});
