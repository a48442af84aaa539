//! A stored response as it is kept outside the process: any bytes give one or nothing,
//! its body is no longer than allowed, and it is the same when it is encoded again.

#![no_main]

use ordgate::state::value::{decode, decode_content, encode};

const MOST_BODY: usize = 1 << 20;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let _checked = decode(input, &[], MOST_BODY);
    if let Some(value) = decode_content(input, MOST_BODY) {
        assert!(value.body.len() <= MOST_BODY);
        assert_eq!(decode(&encode(&value, &[]), &[], MOST_BODY), Some(value));
    }
});
