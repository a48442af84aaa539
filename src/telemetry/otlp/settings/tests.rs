//! The variables, as tables.

use super::*;

fn read(variables: &[(&str, &str)]) -> Result<Option<CollectorSettings>, CollectorProblem> {
    CollectorSettings::read(|name| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    })
}

const BASE: &str = "OTEL_EXPORTER_OTLP_ENDPOINT";
const TRACES: &str = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT";

#[test]
fn the_url_to_post_to() {
    for (variables, url) in [
        (&[][..], None),
        (&[(BASE, "")], None),
        (&[(BASE, "  ")], None),
        (&[(BASE, "http://c:4318")], Some("http://c:4318/v1/traces")),
        (&[(BASE, "http://c:4318/")], Some("http://c:4318/v1/traces")),
        (
            &[(BASE, "https://c/otlp")],
            Some("https://c/otlp/v1/traces"),
        ),
        (&[(TRACES, "http://c:4318")], Some("http://c:4318/")),
        (&[(TRACES, "https://c/in?x=1")], Some("https://c/in?x=1")),
        (
            &[(TRACES, "http://t/x"), (BASE, "http://c")],
            Some("http://t/x"),
        ),
        (&[(BASE, "http://c"), ("OTEL_SDK_DISABLED", "TRUE")], None),
        (
            &[(BASE, "http://c"), ("OTEL_TRACES_EXPORTER", "none")],
            None,
        ),
        (
            &[(BASE, "http://c"), ("OTEL_TRACES_EXPORTER", "otlp")],
            Some("http://c/v1/traces"),
        ),
    ] {
        let settings = read(variables).unwrap();
        let found = settings.map(|settings| settings.url.to_string());
        assert_eq!(found.as_deref(), url, "{variables:?}");
    }
}

#[test]
fn what_cannot_be_used_is_refused_without_showing_secrets() {
    let base = (BASE, "http://c");
    for (variables, word) in [
        (&[(BASE, "c:4318")][..], BASE),
        (&[(BASE, "ftp://c")], "http or https"),
        (&[(BASE, "http://u:hidden@c")], "without user"),
        (&[base, ("OTEL_TRACES_EXPORTER", "zipkin")], "zipkin"),
        (&[base, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], "no gRPC"),
        (
            &[base, ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "x")],
            "_TRACES_PROTOCOL",
        ),
        (
            &[base, ("OTEL_EXPORTER_OTLP_COMPRESSION", "zstd")],
            "gzip, none",
        ),
        (
            &[base, ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s")],
            "milliseconds",
        ),
        (&[base, ("OTEL_EXPORTER_OTLP_TIMEOUT", "0")], "milliseconds"),
        (&[base, ("OTEL_BSP_SCHEDULE_DELAY", "-1")], "milliseconds"),
        (&[base, ("OTEL_BSP_EXPORT_TIMEOUT", "60001")], "1 to 60000"),
        (
            &[base, ("OTEL_EXPORTER_OTLP_HEADERS", "hidden")],
            "name=value",
        ),
        (
            &[base, ("OTEL_EXPORTER_OTLP_HEADERS", "=hidden")],
            "name=value",
        ),
        (
            &[base, ("OTEL_EXPORTER_OTLP_HEADERS", "a=%ffhidden")],
            "name=value",
        ),
        (
            &[base, ("OTEL_EXPORTER_OTLP_HEADERS", "a b=hidden")],
            "header field",
        ),
        (
            &[base, ("OTEL_EXPORTER_OTLP_HEADERS", "a=hidden%0a")],
            "header field",
        ),
        (
            &[base, ("OTEL_RESOURCE_ATTRIBUTES", "hidden")],
            "name=value",
        ),
    ] {
        let text = match read(variables) {
            Ok(_) => panic!("{variables:?}"),
            Err(problem) => problem.to_string(),
        };
        assert!(text.contains(word), "{text}");
        assert!(!text.contains("hidden"), "{text}");
    }
}
