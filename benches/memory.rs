//! What a stored response costs, all counted: `cargo bench --bench memory`.
//! Fills the store with tokens of 600 bytes and asks the system what the
//! process has grown by; the store's own account must not say less.

#![expect(clippy::print_stdout, reason = "a bench reports on standard output")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use ordgate::cache::key::Key;
use ordgate::cache::metadata::{ClientFreshness, Metadata};
use ordgate::cache::store::Store;
use ordgate::cache::validator::etag;
use ordgate::cache::{StoredFields, StoredResponse};
use ordgate::clock::Moment;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const ENTRIES: usize = 100_000;
const BODY: usize = 600;

fn main() {
    let store = Store::new(4 << 30);
    let metadata = Metadata::of(
        http::HeaderValue::from_static("application/json"),
        ClientFreshness::For(Duration::from_secs(10)),
    );
    let before = resident();
    for n in 0..ENTRIES {
        let mut key = Key::begin(0);
        key.buffer()
            .extend_from_slice(format!("/ordinals/v1/brc-20/tokens/{n:05x}").as_bytes());
        // Exactly as large as it is, as the upstream's reading makes it.
        let body = Bytes::from(Box::<[u8]>::from(format!("{n:0BODY$}").as_bytes()));
        let mut stored = StoredResponse::of_json(body);
        stored.etag = etag(&stored.body);
        stored.is_encodable = true;
        stored.fields = StoredFields::Prepared(Arc::clone(&metadata));
        stored.lifetime = Duration::from_secs(3600);
        store.insert(&key, Arc::new(stored));
    }
    store.sweep(Moment::default(), |_| Some(Duration::ZERO));
    let grown = resident().saturating_sub(before);
    let size = store.size();
    divan::black_box(&store);
    let each = |bytes: u64| bytes / ENTRIES as u64;
    println!("entries            {}", size.entries);
    println!("bytes of a body    {BODY}");
    println!("resident, each     {}", each(grown));
    println!("accounted, each    {}", each(size.bytes));
}

/// The process's resident memory, in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<u64>().ok());
    pages.unwrap_or(0) * rustix::param::page_size() as u64
}
