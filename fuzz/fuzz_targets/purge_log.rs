//! The purge log of the state on disk: any bytes give its records or an error, and the
//! records are the same when they are written and read again.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    ordgate::disk::parse_purge_log(input);
});
