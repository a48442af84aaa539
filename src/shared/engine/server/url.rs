//! Where the engine is, and how a connection is made.

use std::fmt;

use redis::cluster::ClusterClient;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    ProtocolVersion, RedisResult,
};

use super::{CONNECT_TIMEOUT, Connection};

/// Where the engine is.
#[derive(Clone)]
pub struct EngineUrl {
    nodes: Vec<ConnectionInfo>,
}

impl EngineUrl {
    /// Reads one URL, or those of several nodes of a cluster, separated by commas.
    ///
    /// # Errors
    /// What is wrong with it. The text has no part of the URL.
    pub fn parse(text: &str) -> Result<Self, String> {
        let nodes: Vec<_> = text.split(',').map(str::trim).collect();
        let is_cluster = nodes.len() > 1;
        let parsed = nodes.iter().zip(1..).map(|(node, number)| {
            parse_node(node, is_cluster).map_err(|problem| match is_cluster {
                true => format!("node {number}: {problem}"),
                false => problem.to_owned(),
            })
        });
        let nodes = parsed.collect::<Result<Vec<_>, _>>()?;
        let url = Self { nodes };
        if is_cluster && url.cluster().is_err() {
            let problem = "the nodes must have the same scheme, user, password and database";
            return Err(problem.to_owned());
        }
        Ok(url)
    }

    /// Whether what is sent can be read on the way: TCP without TLS to another machine.
    pub fn is_exposed(&self) -> bool {
        self.nodes.iter().any(|node| {
            let ConnectionAddr::Tcp(host, _) = node.addr() else {
                return false;
            };
            let address = host.parse::<std::net::IpAddr>();
            !(host == "localhost" || address.is_ok_and(|address| address.is_loopback()))
        })
    }

    fn cluster(&self) -> RedisResult<ClusterClient> {
        ClusterClient::builder(self.nodes.iter().cloned())
            .retries(0)
            .connection_timeout(CONNECT_TIMEOUT)
            .response_timeout(CONNECT_TIMEOUT)
            .build()
    }

    pub(super) async fn connect(&self) -> RedisResult<Connection> {
        if let [node] = &self.nodes[..] {
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(CONNECT_TIMEOUT))
                .set_response_timeout(None);
            let client = Client::open(node.clone())?;
            let made = client.get_multiplexed_async_connection_with_config(&config);
            return made.await.map(Connection::Single);
        }
        let made = self.cluster()?.get_async_connection().await?;
        Ok(Connection::Cluster(Box::new(made)))
    }
}

/// Hosts and ports only.
impl fmt::Debug for EngineUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = self.nodes.iter().map(|node| node.addr().to_string());
        f.debug_list().entries(addresses).finish()
    }
}

fn parse_node(node: &str, is_cluster: bool) -> Result<ConnectionInfo, &'static str> {
    let form = "it is not a URL like redis://user:password@host:6379/0, rediss://host or \
                unix:///path";
    let scheme = node.split_once("://").map(|(scheme, _)| scheme);
    match scheme {
        Some("redis" | "rediss" | "unix") => {}
        _ => return Err(form),
    }
    if node.contains('#') {
        return Err("a URL has no fragment; certificates are always checked");
    }
    check_parameters(node, scheme == Some("unix"))?;
    let Ok(info) = node.into_connection_info() else {
        return Err(form);
    };
    if is_cluster && scheme == Some("unix") {
        return Err("nodes of a cluster are not reached by a socket in the file system");
    }
    if is_cluster && info.redis_settings().db() != 0 {
        return Err("a cluster has database 0 only");
    }
    // RESP2 has a command of its own for the password: an error about HELLO, which RESP3
    // has instead, would quote it.
    let settings = info
        .redis_settings()
        .clone()
        .set_protocol(ProtocolVersion::RESP2);
    let settings = settings.set_skip_set_lib_name();
    Ok(info.set_redis_settings(settings))
}

/// The parameters of a URL. The crate ignores those that it does not know, and one with a
/// spelling mistake would be missed.
fn check_parameters(node: &str, is_socket: bool) -> Result<(), &'static str> {
    let Some((_, query)) = node.split_once('?') else {
        return Ok(());
    };
    let is_known = |parameter: &str| {
        let name = parameter
            .split_once('=')
            .map_or(parameter, |(name, _)| name);
        is_socket && ["db", "user", "pass"].contains(&name)
    };
    match (query.split('&').all(is_known), is_socket) {
        (true, _) => Ok(()),
        (false, true) => Err("unix:// has the parameters db, user and pass, and no others"),
        (false, false) => Err(
            "redis:// and rediss:// have no parameters (?...): user and password come before the \
             host, and the database after it (redis://user:password@host:6379/0)",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_read() {
        for url in [
            "redis://127.0.0.1",
            "redis://user:pass%40word@engine.internal:6380/2",
            "rediss://:secret@engine.internal",
            "unix:///run/valkey/valkey.sock?db=1&user=u&pass=p",
            "redis://u:p@10.0.0.1:7000, redis://u:p@10.0.0.2:7000,redis://u:p@[::1]:7000",
        ] {
            let read = EngineUrl::parse(url);
            assert!(read.is_ok(), "{url}: {read:?}");
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
            ("redis://:secret@one?foo=bar", "no parameters"),
            ("redis://one?protocol=resp3", "no parameters"),
            ("redis://one/1?", "no parameters"),
            ("unix:///run/s.sock?db=1&passs=secret", "db, user and pass"),
            (
                "redis://:secret@one,redis://:secret@two?db=1",
                "node 2: redis://",
            ),
            ("redis://:secret@one,", "node 2: it is not"),
            ("redis://:secret@one,unix:///secret", "node 2: nodes of"),
            ("redis://:secret@one/1,redis://:secret@two/1", "database 0"),
            ("redis://:secret@one,redis://:other@two", "the same scheme"),
            (
                "redis://:secret@one,rediss://:secret@two",
                "the same scheme",
            ),
        ] {
            let error = EngineUrl::parse(url).unwrap_err();
            assert!(error.contains(words), "{url}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn debug_output_has_no_password() {
        let url = EngineUrl::parse("rediss://user:secret@engine.internal/3").unwrap();
        assert_eq!(format!("{url:?}"), "[\"engine.internal:6379\"]");
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
            ("redis://127.0.0.1,redis://10.0.0.1", true),
        ] {
            let read = EngineUrl::parse(url).unwrap();
            assert_eq!(read.is_exposed(), is_exposed, "{url}");
        }
    }
}
