//! Where the engine is.

use std::fmt;

use redis::{
    Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion, RedisResult,
};

/// Where the engine is: host and port, or a unix socket; TLS, user, password, database.
#[derive(Clone)]
pub struct EngineUrl(ConnectionInfo);

impl EngineUrl {
    /// Reads a URL.
    ///
    /// # Errors
    /// What is wrong with it. The text has no part of the URL.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        let form = "it is not a URL like redis://user:password@host:6379/0, rediss://host or \
                    unix:///path";
        let scheme = text.split_once("://").map(|(scheme, _)| scheme);
        if !matches!(scheme, Some("redis" | "rediss" | "unix")) {
            return Err(form);
        }
        if text.contains(',') {
            return Err(
                "it is several URLs; ordgate uses one server or one failover address, \
                        not a cluster",
            );
        }
        if text.contains('#') {
            return Err("a URL has no fragment; certificates are always checked");
        }
        check_parameters(text)?;
        let info = text.into_connection_info().map_err(|_foreign| form)?;
        // RESP2 has a command of its own for the password: an error about HELLO, which RESP3
        // has instead, would quote it.
        let settings = info.redis_settings().clone();
        let settings = settings.set_protocol(ProtocolVersion::RESP2);
        let settings = settings.set_skip_set_lib_name();
        Ok(Self(info.set_redis_settings(settings)))
    }

    /// Whether what is sent can be read on the way: TCP without TLS to another machine.
    pub fn is_exposed(&self) -> bool {
        let ConnectionAddr::Tcp(host, _) = self.0.addr() else {
            return false;
        };
        let address = host.parse::<std::net::IpAddr>();
        !(host == "localhost" || address.is_ok_and(|address| address.is_loopback()))
    }

    pub(super) fn client(&self) -> RedisResult<Client> {
        Client::open(self.0.clone())
    }
}

/// Host and port only.
impl fmt::Debug for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.addr())
    }
}

/// The parameters of a URL. The crate ignores those that it does not know, and one with a
/// spelling mistake would be missed.
fn check_parameters(url: &str) -> Result<(), &'static str> {
    let Some((_, query)) = url.split_once('?') else {
        return Ok(());
    };
    let is_known = |parameter: &str| {
        ["db=", "user=", "pass="]
            .iter()
            .any(|name| parameter.starts_with(name))
    };
    match url.starts_with("unix:") && query.split('&').all(is_known) {
        true => Ok(()),
        false => Err(
            "unix:// has the parameters db, user and pass, and no others; redis:// and rediss:// have none: user and password come before the host, and the database after it (redis://user:password@host:6379/0)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read_and_shown_without_the_password() {
        for (url, shown) in [
            ("redis://127.0.0.1", "127.0.0.1:6379"),
            ("redis://u:pass%40word@engine:6380/2", "engine:6380"),
            ("rediss://:secret@engine.internal", "engine.internal:6379"),
            ("unix:///run/v.sock?db=1&user=u&pass=p", "/run/v.sock"),
        ] {
            assert_eq!(format!("{:?}", EngineUrl::parse(url).unwrap()), shown);
        }
    }

    #[test]
    fn a_wrong_url_is_explained_without_its_text() {
        for (url, words) in [
            ("", "not a URL"),
            ("engine.internal:6379", "not a URL"),
            ("http://:secret@engine.internal", "not a URL"),
            ("redis://:secret@engine.internal:99999", "not a URL"),
            ("redis://:secret@engine.internal/first", "not a URL"),
            ("rediss://:secret@engine.internal/#insecure", "certificates"),
            ("redis://:secret@one?protocol=resp3", "have none"),
            ("unix:///run/s.sock?db=1&passs=secret", "db, user and pass"),
            ("redis://:secret@one,redis://two", "not a cluster"),
        ] {
            let error = EngineUrl::parse(url).unwrap_err();
            assert!(error.contains(words), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn only_tcp_without_tls_to_another_machine_is_exposed() {
        for (url, is_exposed) in [
            ("redis://127.0.0.1", false),
            ("redis://[::1]", false),
            ("redis://localhost", false),
            ("redis://10.0.0.1", true),
            ("rediss://10.0.0.1", false),
            ("unix:///run/valkey.sock", false),
        ] {
            let read = EngineUrl::parse(url).unwrap();
            assert_eq!(read.is_exposed(), is_exposed, "{url}");
        }
    }
}
