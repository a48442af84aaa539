//! HTTP/1.1 as bytes, for both ends: requests as a server reads them, answers as a
//! client does. Incorrect framing is an error.

use std::io;
use std::os::fd::AsFd;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

/// The longest head that is read.
const MOST_HEAD: usize = 64 * 1024;

/// One connection, and what has come on it beyond what was read.
pub(crate) struct Wire<S = TcpStream> {
    pub(crate) stream: S,
    held: Vec<u8>,
}

/// How a message did not come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Broken {
    /// The connection ended, or was reset, between messages.
    Closed,
    /// It ended within one.
    Torn,
    /// What came is not HTTP as it should be.
    Malformed(String),
}

/// A head: its first line, and its fields with names in lower case.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) line: String,
    pub(crate) fields: Vec<(String, String)>,
}

impl<S: AsyncRead + AsyncWrite + AsFd + Unpin> Wire<S> {
    pub(crate) fn new(stream: S) -> Self {
        // A peer that is gone already shows when it is read.
        let _ = SockRef::from(&stream).set_tcp_nodelay(true);
        Self {
            stream,
            held: Vec::new(),
        }
    }

    pub(crate) async fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref()).await
    }

    /// How many bytes have come that were not read.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }

    /// The bytes that have come and were not read.
    pub(crate) fn take_held(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.held)
    }

    /// Reads until something comes, and says whether anything did: `false` is
    /// the end, or a reset.
    pub(crate) async fn more(&mut self) -> bool {
        let read = self.stream.read_buf(&mut self.held).await;
        read.is_ok_and(|n| n > 0)
    }

    /// Reads a head.
    pub(crate) async fn head(&mut self) -> Result<Head, Broken> {
        let end = loop {
            if let Some(at) = self.held.windows(4).position(|four| four == b"\r\n\r\n") {
                break at + 4;
            }
            if self.held.len() > MOST_HEAD {
                return Err(Broken::Malformed("a head without an end".to_owned()));
            }
            if !self.more().await {
                return Err(match self.held.is_empty() {
                    true => Broken::Closed,
                    false => Broken::Torn,
                });
            }
        };
        let raw: Vec<u8> = self.held.drain(..end).collect();
        let text = String::from_utf8(raw);
        let text = text.map_err(|_bytes| Broken::Malformed("a head of odd bytes".to_owned()))?;
        let mut lines = text.trim_end_matches("\r\n").split("\r\n");
        let line = lines.next().unwrap_or("").to_owned();
        let mut fields = Vec::new();
        for line in lines {
            let good = line
                .split_once(':')
                .filter(|(name, _)| !name.is_empty() && !name.contains([' ', '\t']));
            let Some((name, value)) = good else {
                return Err(Broken::Malformed(format!("a field line {line:?}")));
            };
            fields.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        Ok(Head { line, fields })
    }

    pub(crate) async fn chunks(&mut self) -> Result<Vec<u8>, Broken> {
        let mut body = Vec::new();
        loop {
            let line = self.line().await?;
            let Ok(size) = usize::from_str_radix(&line, 16) else {
                return Err(Broken::Malformed(format!("a chunk of {line:?}")));
            };
            body.extend(self.exactly(size).await?);
            if !self.line().await?.is_empty() {
                return Err(Broken::Malformed("a chunk's end".to_owned()));
            }
            if size == 0 {
                return Ok(body);
            }
        }
    }

    async fn line(&mut self) -> Result<String, Broken> {
        loop {
            if let Some(end) = self.held.windows(2).position(|two| two == b"\r\n") {
                let line: Vec<u8> = self.held.drain(..end + 2).collect();
                return Ok(String::from_utf8_lossy(&line[..end]).into_owned());
            }
            if !self.more().await {
                return Err(Broken::Torn);
            }
        }
    }

    pub(crate) async fn exactly(&mut self, length: usize) -> Result<Vec<u8>, Broken> {
        while self.held.len() < length {
            if !self.more().await {
                return Err(Broken::Torn);
            }
        }
        Ok(self.held.drain(..length).collect())
    }
}

/// The rows of a table: names, expectations and bytes between bars, one row a line.
/// `\r`, `\n` and `\0` stand for these bytes.
pub(crate) fn rows<const COLUMNS: usize>(
    table: &str,
) -> impl Iterator<Item = [String; COLUMNS]> + '_ {
    let lines = table.lines().filter(|line| !line.trim().is_empty());
    lines.map(|line| {
        let mut parts = line.splitn(COLUMNS, '|').map(str::trim);
        std::array::from_fn(|_| {
            let part = parts.next().unwrap_or_else(|| panic!("{line}"));
            let part = part.replace(r"\r", "\r").replace(r"\n", "\n");
            part.replace(r"\0", "\0")
        })
    })
}
