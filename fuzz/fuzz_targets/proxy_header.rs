//! PROXY headers: a complete header is recognised at the same length however many
//! bytes follow it, every shorter part of it is incomplete, and its length is
//! bounded.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ordgate::listener::proxy_header::{MAX_HEADER, parse};

fuzz_target!(|bytes: &[u8]| {
    match parse(bytes) {
        Ok(Some(header)) => {
            assert!(header.length <= bytes.len() && header.length <= MAX_HEADER);
            let whole = &bytes[..header.length];
            assert_eq!(parse(whole), Ok(Some(header)));
            for cut in 0..header.length {
                assert_eq!(parse(&whole[..cut]), Ok(None));
            }
        }
        Ok(None) => assert!(bytes.len() < MAX_HEADER),
        Err(_) => {}
    }
});
