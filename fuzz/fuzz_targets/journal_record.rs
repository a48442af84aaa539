//! A record of the journal that replicas share: any bytes give a record, which is the same
//! when it is written and read again, unless it is too long for that.

#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    ordgate::shared::decode_journal_record(input);
});
