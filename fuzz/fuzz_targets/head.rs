//! Framing: messages end at the same byte however they are split, and where httparse ends them.
//! The first byte of an input determines how it is split.

#![no_main]

use ordgate::wire::head::{HeadBounds, HeadFault, RequestScanner};

/// Small, so that inputs reach them.
const BOUNDS: HeadBounds = HeadBounds {
    head: 1500,
    target: 100,
    fields: 16,
};

#[derive(Debug, PartialEq)]
struct Outcome {
    passed: usize,
    heads: usize,
    fault: Option<HeadFault>,
    in_body: bool,
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Some((&seed, bytes)) = input.split_first() else {
        return;
    };
    let whole = run(bytes, || bytes.len());
    let single = run(bytes, || 1);
    let mut state = u32::from(seed);
    let cut = run(bytes, || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        1 + (state >> 24) as usize % 40
    });
    for other in [single, cut] {
        assert_eq!(whole.passed, other.passed, "{whole:?} {other:?}");
        assert_eq!(whole.heads, other.heads, "{whole:?} {other:?}");
        assert_eq!(whole.in_body, other.in_body, "{whole:?} {other:?}");
        // What has grown too long, or begins with a blank, is refused before all
        // of its faults have come.
        let late = |outcome: &Outcome| {
            matches!(
                outcome.fault,
                Some(
                    HeadFault::TargetTooLong
                        | HeadFault::HeadTooLarge
                        | HeadFault::BadChunk
                        | HeadFault::BadRequestLine
                )
            )
        };
        assert_eq!(
            whole.fault.is_some(),
            other.fault.is_some(),
            "{whole:?} {other:?}"
        );
        assert!(
            whole.fault == other.fault || late(&other),
            "{whole:?} {other:?}"
        );
    }
});

/// Feeds the bytes as a connection would: what is not passed comes again with
/// what follows.
fn run(bytes: &[u8], mut step: impl FnMut() -> usize) -> Outcome {
    let mut scan = RequestScanner::new(BOUNDS);
    let mut outcome = Outcome {
        passed: 0,
        heads: 0,
        fault: None,
        in_body: false,
    };
    let mut come = 0;
    while come < bytes.len() && outcome.fault.is_none() {
        let before = scan.in_body();
        come = bytes.len().min(come + step());
        let rest = &bytes[outcome.passed..come];
        let progress = scan.scan(rest);
        assert!(progress.passed <= rest.len());
        if progress.heads == 1 && !before && progress.passed == rest.len() {
            alone(rest, scan.in_body());
        }
        outcome.passed += progress.passed;
        outcome.heads += progress.heads;
        outcome.fault = progress.fault;
        outcome.in_body = scan.in_body();
    }
    outcome
}

/// These bytes begin with a head. httparse ends it at the same place where it
/// is all of them, and the fields say the framing that was found.
fn alone(bytes: &[u8], in_body: bool) {
    let mut fields = [httparse::EMPTY_HEADER; BOUNDS.fields];
    let mut request = httparse::Request::new(&mut fields);
    let read = request.parse(bytes);
    let Ok(httparse::Status::Complete(end)) = read else {
        panic!("httparse says {read:?}");
    };
    let named = |name: &str| {
        let fields = request.headers.iter();
        let mut found = fields.filter(|field| field.name.eq_ignore_ascii_case(name));
        let first = found.next().map(|field| field.value.trim_ascii());
        assert!(found.next().is_none(), "{name} stands there twice");
        first
    };
    let (host, length, coding) = (
        named("host"),
        named("content-length"),
        named("transfer-encoding"),
    );
    assert!(host.is_some() || request.version == Some(0));
    assert!(length.is_none() || coding.is_none());
    let length: u64 = length.map_or(0, |text| str::from_utf8(text).unwrap().parse().unwrap());
    let body = length > 0 || coding.is_some();
    assert!(coding.is_none_or(|coding| coding.eq_ignore_ascii_case(b"chunked")));
    assert!(request.path.unwrap().parse::<http::Uri>().is_ok());
    for field in request.headers.iter() {
        assert!(http::HeaderName::from_bytes(field.name.as_bytes()).is_ok());
        assert!(http::HeaderValue::from_bytes(field.value).is_ok());
    }
    // The whole of a body may be here too; then this is not its head alone.
    if end == bytes.len() {
        assert_eq!(body, in_body);
    } else {
        assert!(body, "httparse ends the head at {end} of {}", bytes.len());
    }
}
