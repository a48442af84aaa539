//! Where traces are exported to: the environment variables of OpenTelemetry
//! (specification, "OTLP Exporter Configuration" and "SDK Environment Variables").
//! Those with `_TRACES` take precedence. An empty variable counts as not set.

use std::path::PathBuf;
use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue, Uri};
use percent_encoding::percent_decode_str;

/// What follows a base URL.
const PATH: &str = "v1/traces";
/// The time that an export may take, unless the environment says otherwise.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long spans wait for an export, unless the environment says otherwise.
const INTERVAL: Duration = Duration::from_secs(5);

/// The most milliseconds of any time but the last.
const MOST_TIME: u64 = 3_600_000;
/// How long the last spans may take when the process ends, unless the environment says
/// otherwise.
const FLUSH: Duration = Duration::from_secs(2);
/// The most that the environment may say: the process does not end before.
const MOST_FLUSH: u64 = 60_000;

/// How spans are encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// Protocol buffers (`http/protobuf`).
    Protobuf,
    /// JSON (`http/json`).
    Json,
}

/// A collector of traces, and what it gets beside them.
#[derive(Clone)]
pub struct CollectorSettings {
    /// The URL to which spans are posted.
    pub(super) url: Uri,
    /// Fields of the requests; they may have secrets.
    pub(super) headers: HeaderMap,
    /// The longest time of one attempt.
    pub(super) timeout: Duration,
    /// How long spans wait until they are exported.
    pub(super) interval: Duration,
    /// How long the export of the last spans may take when the process ends.
    pub(super) flush: Duration,
    pub(super) encoding: Encoding,
    /// Whether requests are compressed with gzip.
    pub(super) gzip: bool,
    /// A file with certificate authorities that are trusted beside the public ones.
    pub(super) authorities: Option<PathBuf>,
    /// What the spans are of, for example `service.name`.
    pub(super) resource: Vec<(String, String)>,
}

/// A variable that cannot be used: its name, and what is allowed. The value is shown
/// unless it may be secret.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} {what}")]
pub struct CollectorProblem {
    name: String,
    what: String,
}

impl CollectorSettings {
    /// Reads the environment; `None` if it names no collector. `variable` returns the
    /// value of a variable.
    ///
    /// # Errors
    /// Which variable cannot be used, and what is allowed.
    pub fn read(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, CollectorProblem> {
        let variables = Variables(&variable);
        if variables.is_disabled()? {
            return Ok(None);
        }
        let Some(url) = variables.url()? else {
            return Ok(None);
        };
        Ok(Some(Self {
            url,
            headers: variables.headers()?,
            timeout: variables.time("TIMEOUT", TIMEOUT)?,
            interval: variables.batch("OTEL_BSP_SCHEDULE_DELAY", MOST_TIME, INTERVAL)?,
            flush: variables.batch("OTEL_BSP_EXPORT_TIMEOUT", MOST_FLUSH, FLUSH)?,
            encoding: variables.encoding()?,
            gzip: variables.gzip()?,
            authorities: variables
                .exporter("CERTIFICATE")
                .map(|(_, path)| path.into()),
            resource: variables.resource()?,
        }))
    }

    /// The collector's scheme, host and port. The rest of its URL may be secret.
    pub fn origin(&self) -> String {
        let scheme = self.url.scheme_str().unwrap_or("http");
        format!("{scheme}://{}", self.host())
    }

    fn host(&self) -> &str {
        self.url
            .authority()
            .map_or("", |authority| authority.as_str())
    }

    /// Whether fields, which may have secrets, are sent unencrypted to another machine.
    pub(crate) fn is_exposed(&self) -> bool {
        let host = self.url.host().unwrap_or_default();
        let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
        let is_here = host == "localhost" || address.is_ok_and(|address| address.is_loopback());
        self.url.scheme_str() == Some("http") && !self.headers.is_empty() && !is_here
    }
}

struct Variables<'a, F>(&'a F);

impl<F: Fn(&str) -> Option<String>> Variables<'_, F> {
    fn get(&self, name: &str) -> Option<String> {
        let value = (self.0)(name)?;
        let value = value.trim();
        (!value.is_empty()).then(|| value.to_owned())
    }

    /// A variable of the exporter, and its name.
    fn exporter(&self, what: &str) -> Option<(String, String)> {
        let names = ["OTEL_EXPORTER_OTLP_TRACES", "OTEL_EXPORTER_OTLP"];
        names.into_iter().find_map(|name| {
            let name = format!("{name}_{what}");
            self.get(&name).map(|value| (name, value))
        })
    }

    fn is_disabled(&self) -> Result<bool, CollectorProblem> {
        let disabled = self.get("OTEL_SDK_DISABLED");
        if disabled.is_some_and(|value| value.eq_ignore_ascii_case("true")) {
            return Ok(true);
        }
        match self.get("OTEL_TRACES_EXPORTER").as_deref() {
            None | Some("otlp") => Ok(false),
            Some("none") => Ok(true),
            Some(other) => problem(
                "OTEL_TRACES_EXPORTER",
                &format!("is {other:?}; allowed is otlp, none, or nothing"),
            ),
        }
    }

    fn url(&self) -> Result<Option<Uri>, CollectorProblem> {
        let Some((name, text)) = self.exporter("ENDPOINT") else {
            return Ok(None);
        };
        let whole = match name.contains("_TRACES_") {
            true => text.clone(),
            false => format!("{}/{PATH}", text.trim_end_matches('/')),
        };
        let url = whole.parse::<Uri>().ok().filter(|url| {
            let is_http = matches!(url.scheme_str(), Some("http" | "https"));
            let is_host = url.host().is_some_and(|host| !host.is_empty());
            is_http && is_host && !url.authority().is_some_and(|a| a.as_str().contains('@'))
        });
        match url {
            Some(url) => Ok(Some(url)),
            // It may have a password.
            None => problem(
                &name,
                "is not an http or https URL without user, such as http://127.0.0.1:4318",
            ),
        }
    }

    fn headers(&self) -> Result<HeaderMap, CollectorProblem> {
        let mut headers = HeaderMap::new();
        let Some((name, text)) = self.exporter("HEADERS") else {
            return Ok(headers);
        };
        for (key, value) in pairs(&name, &text)? {
            let field = HeaderName::try_from(key);
            let value = HeaderValue::try_from(value);
            let (Ok(field), Ok(mut value)) = (field, value) else {
                return problem(&name, "has a name or a value that no header field may have");
            };
            value.set_sensitive(true);
            headers.insert(field, value);
        }
        Ok(headers)
    }

    fn time(&self, what: &str, default: Duration) -> Result<Duration, CollectorProblem> {
        match self.exporter(what) {
            None => Ok(default),
            Some((name, text)) => milliseconds(&name, &text, MOST_TIME),
        }
    }

    /// A time of the batches, of so many milliseconds at most.
    fn batch(
        &self,
        name: &str,
        most: u64,
        default: Duration,
    ) -> Result<Duration, CollectorProblem> {
        match self.get(name) {
            None => Ok(default),
            Some(text) => milliseconds(name, &text, most),
        }
    }

    fn encoding(&self) -> Result<Encoding, CollectorProblem> {
        match self.exporter("PROTOCOL") {
            None => Ok(Encoding::Protobuf),
            Some((_, text)) if text == "http/protobuf" => Ok(Encoding::Protobuf),
            Some((_, text)) if text == "http/json" => Ok(Encoding::Json),
            Some((name, text)) => problem(
                &name,
                &format!(
                    "is {text:?}; allowed is http/protobuf, http/json, or nothing: ordgate has no gRPC, and collectors take HTTP on port 4318"
                ),
            ),
        }
    }

    fn gzip(&self) -> Result<bool, CollectorProblem> {
        match self.exporter("COMPRESSION") {
            None => Ok(false),
            Some((_, text)) if text == "none" => Ok(false),
            Some((_, text)) if text == "gzip" => Ok(true),
            Some((name, text)) => problem(
                &name,
                &format!("is {text:?}; allowed is gzip, none, or nothing"),
            ),
        }
    }

    fn resource(&self) -> Result<Vec<(String, String)>, CollectorProblem> {
        const SERVICE: &str = "service.name";
        let name = "OTEL_RESOURCE_ATTRIBUTES";
        let mut resource = match self.get(name) {
            Some(text) => pairs(name, &text)?,
            None => Vec::new(),
        };
        if let Some(service) = self.get("OTEL_SERVICE_NAME") {
            resource.retain(|(key, _)| key != SERVICE);
            resource.push((SERVICE.to_owned(), service));
        }
        for (key, value) in [
            (SERVICE, "ordgate"),
            ("service.version", env!("CARGO_PKG_VERSION")),
        ] {
            if !resource.iter().any(|(known, _)| known == key) {
                resource.push((key.to_owned(), value.to_owned()));
            }
        }
        Ok(resource)
    }
}

/// Pairs `name=value`, separated by commas, with percent-encoded values. They may be
/// secret, and are not shown.
fn pairs(name: &str, text: &str) -> Result<Vec<(String, String)>, CollectorProblem> {
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    parts
        .map(|part| {
            let pair = part.split_once('=').and_then(|(key, value)| {
                let value = percent_decode_str(value.trim()).decode_utf8().ok()?;
                let key = percent_decode_str(key.trim()).decode_utf8().ok()?;
                (!key.is_empty()).then(|| (key.into_owned(), value.into_owned()))
            });
            match pair {
                Some(pair) => Ok(pair),
                None => problem(
                    name,
                    "is not a list of name=value, separated by commas, with percent-encoded values",
                ),
            }
        })
        .collect()
}

fn milliseconds(name: &str, text: &str, most: u64) -> Result<Duration, CollectorProblem> {
    match text.parse() {
        Ok(number) if (1..=most).contains(&number) => Ok(Duration::from_millis(number)),
        _ => problem(
            name,
            &format!("is {text:?}; allowed is a number of milliseconds from 1 to {most}"),
        ),
    }
}

fn problem<T>(name: &str, what: &str) -> Result<T, CollectorProblem> {
    Err(CollectorProblem {
        name: name.to_owned(),
        what: what.to_owned(),
    })
}

#[cfg(test)]
mod tests;
