//! A stored response as replicas keep it for each other: any bytes are read without a
//! panic, and what is read means the same when it is written again.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    ordgate::shared::decode_shared_value(input);
});
