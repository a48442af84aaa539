//! What the engine's work costs: CPU time of a real redis-server on loopback, as far
//! as one can be found, for the scripts that replicas call (`--engine`).
//!
//! The scripts of the second tier are those of the plan for it. Costs are of the whole
//! process, with its reading and writing of sockets, for clients that each wait for
//! their reply.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

/// Looks up a value; without one, takes its lock or joins those who wait.
const GET: &str = "
local e = redis.call('HMGET', KEYS[1], 'v', 'at', 'b')
if e[1] and e[1] ~= ARGV[2] then
  local now = redis.call('TIME')
  return {1, now[1] * 1000 - e[2], e[3]}
end
local l = redis.call('HMGET', KEYS[2], 'token', 'why')
if not l[1] then
  redis.call('HSET', KEYS[2], 'token', ARGV[1])
  redis.call('PEXPIRE', KEYS[2], 3000)
  return {2}
end
if l[2] then return {4, l[2]} end
redis.call('HINCRBY', KEYS[2], 'waiters', 1)
return {3, redis.call('PTTL', KEYS[2])}";

/// Stores a value, and ends the lock.
const PUT: &str = "
local now = redis.call('TIME')
redis.call('HSET', KEYS[1], 'v', ARGV[2], 'at', now[1] * 1000, 'b', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
local l = redis.call('HMGET', KEYS[2], 'token', 'waiters')
if l[1] ~= ARGV[1] then return 0 end
redis.call('DEL', KEYS[2])
return l[2] or 0";

/// What each replica sends every 150 ms: that it is here, and how far it has read.
const HERE: &str = "
local info = redis.call('INFO', 'server', 'replication')
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('SET', KEYS[2], ARGV[1], 'NX', 'PX', 3000)
local last = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)
local first = redis.call('XRANGE', KEYS[3], '-', '+', 'COUNT', 1)
local all = {}
if ARGV[3] == '1' then all = redis.call('HGETALL', KEYS[1]) end
return {#info, #last, #first, all}";

/// Bytes of values that are put and read, and connections that do it.
const SIZES: [usize; 3] = [1_000, 10_000, 40_000];
const CONNECTIONS: usize = 16;
const ROUNDS: usize = 400;
const READERS: [usize; 2] = [100, 1_000];
const APPENDS: usize = 30;

/// Measures all, and answers with a table.
pub(crate) fn measure() -> Result<Vec<String>> {
    let Some(server) = Server::start()? else {
        return Ok(vec!["SKIPPED: redis-server is not installed".to_owned()]);
    };
    let mut lines = vec![
        "| work of the engine | CPU (us) |".to_owned(),
        "|---|--:|".to_owned(),
    ];
    let mut line = |name: String, time: f64| lines.push(format!("| {name} | {time:.1} |"));
    let mut clients = server.clients(CONNECTIONS)?;
    let (get, put, here) = {
        let client = &mut clients[0];
        (client.load(GET)?, client.load(PUT)?, client.load(HERE)?)
    };
    for bytes in SIZES {
        let value = "v".repeat(bytes);
        let name = |n: usize| (format!("{{k{n}}}:e"), format!("{{k{n}}}:l"));
        let time = server.cost(&mut clients, |n| {
            let (e, l) = name(n);
            command(&["EVALSHA", &put, "2", &e, &l, "t", "1", &value, "3600000"])
        })?;
        line(format!("put of {bytes} bytes"), time);
        let time = server.cost(&mut clients, |n| {
            let (e, l) = name(n);
            command(&["EVALSHA", &get, "2", &e, &l, "t", ""])
        })?;
        line(format!("get of {bytes} bytes"), time);
    }
    let time = server.cost(&mut clients, |n| {
        let (e, l) = (format!("{{m{n}}}:e"), format!("{{m{n}}}:l"));
        command(&["EVALSHA", &get, "2", &e, &l, "t", ""])
    })?;
    line("get of nothing, which takes the lock".to_owned(), time);
    server.appends(&mut clients[0], 1)?;
    let mut of_here = |table: &'static str| {
        server.cost(&mut clients, |n| {
            let row = format!("p{}", n % 1_000);
            command(&[
                "EVALSHA",
                &here,
                "3",
                "{o}:here",
                "{o}:tip",
                "{o}:journal",
                &row,
                "1-1,beat",
                table,
            ])
        })
    };
    line("here".to_owned(), of_here("0")?);
    line(
        "here, with the table of 1,000 rows".to_owned(),
        of_here("1")?,
    );
    for readers in READERS {
        let (each, last) = server.fan_out(&mut clients[0], readers)?;
        line(
            format!("a journal record, for each of {readers} readers"),
            each,
        );
        line(
            format!("the same, wall time until the last of {readers} has it"),
            last,
        );
    }
    Ok(lines)
}

/// A redis-server, ended when this is dropped.
struct Server {
    child: Child,
    port: u16,
    _directory: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        let _ended = self.child.kill().and_then(|()| self.child.wait());
    }
}

impl Server {
    fn start() -> Result<Option<Self>> {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let directory = tempfile::tempdir()?;
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--dir"])
            .arg(directory.path())
            .stdout(Stdio::null())
            .spawn();
        let child = match child {
            Ok(child) => child,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let server = Self {
            child,
            port,
            _directory: directory,
        };
        for _ in 0..100 {
            if TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Ok(Some(server));
            }
            sleep(Duration::from_millis(50));
        }
        bail!("redis-server does not answer")
    }

    fn clients(&self, count: usize) -> Result<Vec<Client>> {
        (0..count).map(|_| Client::connect(self.port)).collect()
    }

    /// CPU time of one request in microseconds, where each client sends its next one
    /// when all have their reply.
    fn cost(&self, clients: &mut [Client], request: impl Fn(usize) -> Vec<u8>) -> Result<f64> {
        let before = self.used()?;
        for round in 0..ROUNDS {
            for (at, client) in clients.iter_mut().enumerate() {
                let number = round * CONNECTIONS + at;
                client.send(&request(number))?;
            }
            for client in clients.iter_mut() {
                client.reply()?;
            }
        }
        let requests = (ROUNDS * clients.len()) as f64;
        Ok((self.used()? - before) * 1e6 / requests)
    }

    /// CPU seconds of the process.
    fn used(&self) -> Result<f64> {
        let mut client = Client::connect(self.port)?;
        client.send(&command(&["INFO", "cpu"]))?;
        let text = client.reply()?;
        let field = |name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name));
            value.and_then(|value| value.trim().parse::<f64>().ok())
        };
        let system = field("used_cpu_sys:").context("no used_cpu_sys")?;
        Ok(system + field("used_cpu_user:").context("no used_cpu_user")?)
    }

    fn appends(&self, client: &mut Client, count: usize) -> Result<()> {
        for _ in 0..count {
            client.send(&command(&[
                "XADD",
                "{o}:journal",
                "MAXLEN",
                "~",
                "65536",
                "*",
                "r",
                &"r".repeat(100),
            ]))?;
            client.reply()?;
        }
        Ok(())
    }

    /// A record for so many blocked readers: the engine's CPU time for each of them,
    /// and the wall time until the last has it, in microseconds.
    #[expect(clippy::disallowed_methods, reason = "a bench measures real time")]
    fn fan_out(&self, writer: &mut Client, readers: usize) -> Result<(f64, f64)> {
        let mut readers = self.clients(readers)?;
        let read = command(&[
            "XREAD",
            "BLOCK",
            "5000",
            "COUNT",
            "256",
            "STREAMS",
            "{o}:journal",
            "$",
        ]);
        let mut wall = 0.0;
        let mut used = 0.0;
        for _ in 0..APPENDS {
            let before = self.used()?;
            for reader in &mut readers {
                reader.send(&read)?;
            }
            // So long that all are blocked.
            sleep(Duration::from_millis(50));
            let start = Instant::now();
            self.appends(writer, 1)?;
            for reader in &mut readers {
                reader.reply()?;
            }
            wall += start.elapsed().as_secs_f64();
            used += self.used()? - before;
        }
        let records = APPENDS as f64;
        Ok((
            used * 1e6 / records / readers.len() as f64,
            wall * 1e6 / records,
        ))
    }
}

/// A connection to the engine.
struct Client {
    write: TcpStream,
    read: BufReader<TcpStream>,
}

impl Client {
    fn connect(port: u16) -> Result<Self> {
        let write = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        write.set_nodelay(true)?;
        write.set_read_timeout(Some(Duration::from_secs(20)))?;
        let read = BufReader::new(write.try_clone()?);
        Ok(Self { write, read })
    }

    fn load(&mut self, script: &str) -> Result<String> {
        self.send(&command(&["SCRIPT", "LOAD", script]))?;
        self.reply()
    }

    fn send(&mut self, request: &[u8]) -> Result<()> {
        Ok(self.write.write_all(request)?)
    }

    /// Reads a reply whole: the last text in it.
    fn reply(&mut self) -> Result<String> {
        let mut open = 1_usize;
        let mut last = String::new();
        while open > 0 {
            open -= 1;
            let mut line = String::new();
            self.read.read_line(&mut line)?;
            let (kind, rest) = line
                .trim_end()
                .split_at_checked(1)
                .context("the engine has gone")?;
            match kind {
                "-" => bail!("the engine refuses: {rest}"),
                "*" => open += rest.parse::<usize>()?,
                "$" if rest != "-1" => {
                    let mut text = vec![0; rest.parse::<usize>()? + 2];
                    self.read.read_exact(&mut text)?;
                    text.truncate(text.len() - 2);
                    last = String::from_utf8(text)?;
                }
                _ => {}
            }
        }
        Ok(last)
    }
}

fn command(parts: &[&str]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", parts.len()).into_bytes();
    for part in parts {
        request.extend_from_slice(format!("${}\r\n{part}\r\n", part.len()).as_bytes());
    }
    request
}
