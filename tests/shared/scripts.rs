//! The script and its model give the same replies and the same rows, on a real server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ordgate::shared::allowance::{CountedReport, ProcessId, Reply, Report, RequestCounts};
use ordgate::shared::engine::REPORT;
use ordgate::shared::engine::model::{self, Row, Rows, Sums};

use super::servers::{Answer, Connection, Server, is_installed, wait_for};

const KEY: &str = "{test:b:0123456789abcdef}";

/// Random numbers (xorshift64*).
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % limit
    }

    fn counts(&mut self, minute: u64, second: u64) -> RequestCounts {
        RequestCounts::new(self.below(minute) as i64, self.below(second) as i64)
    }
}

/// A server whose script is compared with the model.
struct Compared {
    server: Server,
    client: Connection,
    sha: String,
    model: Option<Rows>,
    dice: Dice,
}

impl Compared {
    fn new(server: Server, seed: u64) -> Self {
        let client = server.connection();
        let mut new = Self {
            server,
            client,
            sha: String::new(),
            model: None,
            dice: Dice(seed),
        };
        new.load();
        new
    }

    fn load(&mut self) {
        self.client = self.server.connection();
        self.sha = self
            .client
            .call(&["SCRIPT", "LOAD", REPORT])
            .text()
            .to_owned();
    }

    fn life(&mut self) -> (String, i64) {
        let info = self
            .client
            .call(&["INFO", "server", "replication"])
            .text()
            .to_owned();
        let field = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().to_owned()
        };
        let life = format!("{}-{}", field("run_id:"), field("master_replid:"));
        let is_online = |line: &&str| line.starts_with("slave") && line.contains("state=online");
        (life, info.lines().filter(is_online).count() as i64)
    }

    fn call(&mut self, report: &Report) -> Reply {
        let arguments = report.arguments();
        let mut all = vec!["EVALSHA", &self.sha, "1", KEY];
        all.extend(arguments.iter().map(String::as_str));
        let reply = self.client.call(&all);
        if let Answer::Error(error) = &reply {
            panic!("{error}");
        }
        let fields: Vec<_> = reply.list().iter().map(Answer::text).collect();
        Reply::read(&fields).unwrap_or_else(|| panic!("unreadable: {fields:?}"))
    }

    /// One report to both; the replies and the rows must be the same.
    fn compare(&mut self, life: &str, online: i64, report: &Report) -> Reply {
        let script = self.call(report);
        let server = model::ServerState {
            life,
            online,
            time: Duration::ZERO,
        };
        let mut modelled = model::report(&mut self.model, server, report);
        // Only a new generation's name differs, in the time that is part of it.
        if let Some(rows) = &mut self.model
            && let Some(new) = stored(&mut self.client)
            && rows.generation.ends_with("-0.0")
        {
            let name = format!("{:016x}", report.nonce);
            if rows.generation.starts_with(&name) && new.generation.starts_with(&name) {
                if let Reply::Counted(counted) = &mut modelled {
                    counted.generation = Arc::clone(&new.generation);
                }
                rows.generation = new.generation;
            }
        }
        assert_eq!(script, modelled, "{report:?}");
        assert_eq!(stored(&mut self.client), self.model, "{report:?}");
        script
    }

    fn random_report(&mut self, last: &[Option<CountedReport>]) -> Report {
        let (dice, rows) = (&mut self.dice, self.model.as_ref());
        let who = dice.below(4);
        let known = |who: u64| rows.and_then(|rows| rows.rows.get(&process(who)));
        let newest = known(who).map_or(0, |row| row.sequence);
        let followed = match dice.below(4) {
            0 => None,
            1 => last[who as usize]
                .as_ref()
                .map(|last| Arc::clone(&last.generation)),
            _ => rows.map(|rows| Arc::clone(&rows.generation)),
        };
        let mut remove = Vec::new();
        while dice.below(6) == 0 {
            let other = dice.below(5);
            let sequence = known(other).map_or(3, |row| row.sequence);
            remove.push((process(other), sequence - dice.below(2).min(sequence)));
        }
        let floor = RequestCounts::new(1 + dice.below(12) as i64, dice.below(4) as i64);
        Report {
            process: process(who),
            sequence: (newest + 1 + dice.below(3)).saturating_sub(dice.below(4)),
            followed,
            nonce: dice.below(1 << 30),
            keep: match dice.below(3) {
                0 => RequestCounts::ZERO,
                _ => dice.counts(25, 6),
            },
            ask: dice.counts(60, 12),
            want: dice.counts(80, 20),
            floor,
            total: RequestCounts::new(50 + dice.below(3) as i64, 10 + dice.below(2) as i64),
            reserve: floor + floor + floor,
            copies: i64::from(dice.below(40) == 0),
            stay_ms: 80_000 + dice.below(60_000),
            name: format!("replica-{who}").into(),
            list: dice.below(5) == 0,
            remove,
        }
    }

    /// So many random reports.
    fn sequence(&mut self, reports: usize) -> [usize; 2] {
        let (life, online) = self.life();
        let mut last = vec![None; 4];
        let mut seen = [0; 2];
        for _ in 0..reports {
            let report = self.random_report(&last);
            match self.compare(&life, online, &report) {
                Reply::Stale => seen[0] += 1,
                Reply::Counted(counted) => {
                    let raised = counted.grant.minute > report.keep.minute;
                    seen[1] += usize::from(raised);
                    let who = (report.process.0 & 3) as usize;
                    last[who] = Some(counted);
                }
            }
        }
        seen
    }

    fn flush(&mut self) {
        self.client.call(&["FLUSHALL"]);
        self.model = None;
    }
}

fn process(number: u64) -> ProcessId {
    ProcessId(u128::from(number) << 100 | u128::from(number))
}

/// The hash as the model has it; `None` if there is none.
fn stored(client: &mut Connection) -> Option<Rows> {
    let all = client.call(&["HGETALL", KEY]);
    let fields: BTreeMap<_, _> = all
        .list()
        .chunks(2)
        .map(|pair| (pair[0].text(), pair[1].text()))
        .collect();
    let generation = (*fields.get("generation")?).into();
    let rows = fields
        .iter()
        .filter_map(|(name, row)| Some((name.strip_prefix("p:")?, row)));
    let rows = rows.map(|(process, row)| {
        let process = u128::from_str_radix(process, 16).unwrap();
        (ProcessId(process), row_of(row))
    });
    let sums = pairs(fields.get("sums")?.split(','));
    Some(Rows {
        generation,
        life: fields["life"].into(),
        copies: fields["copies"].parse().unwrap(),
        rows: rows.collect(),
        sums: Sums {
            processes: sums.0,
            grant: sums.1[0],
            floor: sums.1[1],
            want: sums.1[2],
            total: sums.1[3],
        },
    })
}

fn pairs<'t>(mut fields: impl Iterator<Item = &'t str>) -> (i64, [RequestCounts; 4]) {
    let mut next = || fields.next().unwrap().parse().unwrap();
    let first = next();
    (
        first,
        std::array::from_fn(|_| RequestCounts::new(next(), next())),
    )
}

fn row_of(row: &str) -> Row {
    let fields: Vec<_> = row.split(',').collect();
    let (sequence, [grant, floor, want, total]) = pairs(fields.iter().copied());
    Row {
        sequence: sequence as u64,
        grant,
        floor,
        want,
        total,
        stay_ms: fields[9].parse().unwrap(),
        name: fields[10].into(),
    }
}

/// 10,000 with the environment's word, as for the proof.
fn sequences() -> usize {
    let given = std::env::var("ORDGATE_ALLOWANCE_SEEDS").ok();
    given.map_or(400, |given| given.parse().unwrap())
}

#[test]
fn the_script_is_the_model() {
    if !is_installed() {
        return;
    }
    let mut compared = Compared::new(Server::start(), 0x9e37_79b9);
    let mut seen = [0; 2];
    for _ in 0..sequences() {
        compared.flush();
        let more = compared.sequence(25);
        seen = [seen[0] + more[0], seen[1] + more[1]];
    }
    assert!(seen[0] > 200 && seen[1] > 200, "too few cases: {seen:?}");
}

#[test]
fn a_restart_begins_a_new_generation() {
    if !is_installed() {
        return;
    }
    let mut compared = Compared::new(Server::start(), 0x1234_5678);
    compared.sequence(20);
    for _ in 0..3 {
        let before = stored(&mut compared.client).unwrap();
        compared.server.call(&["SAVE"]);
        compared.server.kill();
        compared.server.start_again();
        compared.load();
        assert_eq!(
            stored(&mut compared.client),
            Some(before.clone()),
            "the dump is loaded"
        );
        compared.sequence(20);
        let after = stored(&mut compared.client).unwrap();
        assert_ne!(
            (after.generation, after.life),
            (before.generation, before.life)
        );
    }
}

/// A copy counts while it follows, an engine without it raises nothing, and a copy that
/// was promoted knows that it is alone.
#[test]
fn copies_are_counted() {
    if !is_installed() {
        return;
    }
    let (primary, copy) = (Server::start(), Server::start());
    let mut copy_client = copy.connection();
    copy.follow(&primary);
    let mut compared = Compared::new(primary, 0x8765_4321);
    assert_eq!(compared.life().1, 1);
    compared.sequence(20);
    assert_eq!(compared.model.as_ref().unwrap().copies, 1);
    wait_for("the copy has the rows", || {
        stored(&mut copy_client) == compared.model
    });
    let sha = copy_client
        .call(&["SCRIPT", "LOAD", REPORT])
        .text()
        .to_owned();
    let mut first = compared.random_report(&vec![None; 4]);
    first.copies = 0;
    let arguments = first.arguments();
    let mut call = vec!["EVALSHA", &sha, "1", KEY];
    call.extend(arguments.iter().map(String::as_str));
    let refused = copy_client.call(&call);
    assert!(
        matches!(&refused, Answer::Error(error) if error.contains("READONLY")),
        "{refused:?}"
    );

    copy.promote();
    wait_for("the copy has left", || compared.life().1 == 0);
    compared.sequence(20);
    let mut promoted = Compared::new(copy, 1);
    promoted.model = stored(&mut copy_client);
    let before = promoted.model.clone().unwrap();
    let (life, online) = promoted.life();
    assert_eq!((online, *before.life == *life), (0, false));
    let Reply::Counted(counted) = promoted.compare(&life, online, &first) else {
        panic!("a new generation has no rows");
    };
    assert_eq!((counted.majority, counted.copies), (false, 1));
    assert_ne!(counted.generation, before.generation);
    promoted.sequence(20);
}
