//! A value of the state on disk: any bytes give stored responses or nothing, and what
//! was decoded means the same when it is encoded again.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    ordgate::disk::decode_value(input);
});
