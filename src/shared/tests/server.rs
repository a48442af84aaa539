//! A stub of the engine, which runs the real scripts, with a copy that may take over.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use mlua::{Function, Lua, Table, Value, Variadic};

/// What a server has stored: sorted sets, and texts with when they expire.
#[derive(Clone, Default)]
struct Data {
    sets: BTreeMap<String, BTreeMap<String, f64>>,
    texts: BTreeMap<String, u64>,
    /// When sets expire: for a rule that is taken out.
    set_expiry: BTreeMap<String, u64>,
}

#[derive(Default)]
struct State {
    now: u64,
    /// What the primary's clock is behind the real time.
    behind: u64,
    run_id: u64,
    replication_id: u64,
    data: Data,
}

/// A primary, its copy, and what was saved.
pub(super) struct Server {
    state: Rc<RefCell<State>>,
    scripts: [Function; 2],
    lua: Lua,
    copy: Data,
    saved: Data,
    /// Of primary and copy; a server keeps its own until it is restarted.
    run_ids: [u64; 2],
    next_id: u64,
}

impl Server {
    pub(super) fn new(take: &str, give_back: &str) -> Self {
        let lua = Lua::new();
        let state = Rc::new(RefCell::new(State::default()));
        let own = state.clone();
        let call = lua.create_function(move |lua, arguments: Variadic<mlua::String>| {
            let arguments: Vec<_> = arguments.iter().map(|a| a.to_str().unwrap().to_owned()).collect();
            own.borrow_mut().command(lua, &arguments)
        });
        let redis = lua.create_table().unwrap();
        redis.set("call", call.unwrap()).unwrap();
        lua.globals().set("redis", redis).unwrap();
        let load = |code: &str| lua.load(code).into_function().unwrap();
        let scripts = [load(take), load(give_back)];
        let mut new = Self {
            state,
            scripts,
            lua,
            copy: Data::default(),
            saved: Data::default(),
            run_ids: [1, 2],
            next_id: 3,
        };
        new.set_ids();
        new
    }

    fn run(&mut self, now: u64, script: usize, arguments: &[&str]) -> Value {
        self.state.borrow_mut().now = now;
        let table = |texts: &[&str]| self.lua.create_sequence_from(texts.iter().copied()).unwrap();
        let globals = self.lua.globals();
        globals.set("KEYS", table(&["permits", "rest"])).unwrap();
        globals.set("ARGV", table(arguments)).unwrap();
        self.scripts[script].call(()).unwrap()
    }

    /// The outcome of a call, and its time in ms.
    pub(super) fn take(&mut self, now: u64, id: &str, pool: [u32; 2]) -> (String, u64) {
        let [minute, second] = pool.map(|limit| limit.to_string());
        let reply = self.run(now, 0, &[id, &minute, &second, "0"]);
        let reply = reply.as_table().unwrap();
        (reply.get(1).unwrap(), reply.get(2).unwrap())
    }

    pub(super) fn give_back(&mut self, now: u64, id: &str, how: &str) {
        self.run(now, 1, &[id, how, "0"]);
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn set_ids(&mut self) {
        let replication_id = self.new_id();
        let mut state = self.state.borrow_mut();
        (state.run_id, state.replication_id) = (self.run_ids[0], replication_id);
    }

    /// The copy gets all.
    pub(super) fn copy(&mut self) {
        self.copy = self.state.borrow().data.clone();
    }

    pub(super) fn save(&mut self) {
        self.saved = self.state.borrow().data.clone();
    }

    pub(super) fn flush(&mut self) {
        self.state.borrow_mut().data = Data::default();
    }

    /// With what was saved, or empty. It may keep its replication id.
    pub(super) fn restart(&mut self, is_empty: bool, keeps_id: bool) {
        let replication_id = self.state.borrow().replication_id;
        self.run_ids[0] = self.new_id();
        self.set_ids();
        let mut state = self.state.borrow_mut();
        if keeps_id {
            state.replication_id = replication_id;
        }
        state.data = Data::default();
        if !is_empty {
            state.data = self.saved.clone();
        }
    }

    /// The copy takes over with what it has, and the primary becomes its copy.
    pub(super) fn fail_over(&mut self) {
        self.run_ids.swap(0, 1);
        self.set_ids();
        self.state.borrow_mut().data = self.copy.clone();
    }

    /// Both are primaries, and the other one is called now: not covered.
    pub(super) fn split(&mut self, replication_ids: &mut u64) {
        self.run_ids.swap(0, 1);
        let mut state = self.state.borrow_mut();
        state.run_id = self.run_ids[0];
        std::mem::swap(&mut state.replication_id, replication_ids);
        std::mem::swap(&mut state.data, &mut self.copy);
    }

    pub(super) fn set_clock_back(&mut self, by: u64) {
        self.state.borrow_mut().behind += by;
    }
}

impl State {
    /// The primary's clock, in ms.
    fn clock(&self) -> u64 {
        1_700_000_000_000 + self.now - self.behind
    }

    fn command(&mut self, lua: &Lua, call: &[String]) -> mlua::Result<Value> {
        let clock = self.clock();
        let gone: Vec<_> = self.data.set_expiry.iter().filter(|(_, at)| **at <= clock).map(|(key, _)| key.clone()).collect();
        for key in gone {
            self.data.sets.remove(&key);
            self.data.set_expiry.remove(&key);
        }
        let call: Vec<_> = call.iter().map(String::as_str).collect();
        let count = |count: usize| Ok(Value::Integer(count as i64));
        match &*call {
            ["INFO", "server", "replication"] => {
                let info = format!("run_id:{:x}\r\nmaster_replid:{:x}\r\n", self.run_id, self.replication_id);
                lua.create_string(info).map(Value::String)
            }
            ["TIME"] => {
                let parts = [(clock / 1000).to_string(), (clock % 1000 * 1000).to_string()];
                lua.create_sequence_from(parts).map(Value::Table)
            }
            ["DEL", key] => count(usize::from(self.data.sets.remove(*key).is_some())),
            ["PEXPIRE", key, ms] => {
                self.data.set_expiry.insert((*key).to_owned(), clock + ms.parse::<u64>().unwrap());
                count(1)
            }
            ["PTTL", key] => Ok(Value::Integer(match self.data.texts.get(*key) {
                Some(at) if *at > clock => (*at - clock) as i64,
                _ => -2,
            })),
            ["SET", key, _, "PX", ms] => {
                self.data.texts.insert((*key).to_owned(), clock + ms.parse::<u64>().unwrap());
                Ok(Value::Boolean(true))
            }
            [name, key, rest @ ..] => {
                let set = self.data.sets.entry((*key).to_owned()).or_default();
                let value = sorted_set(lua, set, name, rest);
                if set.is_empty() {
                    self.data.sets.remove(*key);
                }
                value
            }
            [] | [_] => panic!("not in the stub: {call:?}"),
        }
    }
}

fn sorted_set(lua: &Lua, set: &mut BTreeMap<String, f64>, name: &str, rest: &[&str]) -> mlua::Result<Value> {
    let count = |count: usize| Ok(Value::Integer(count as i64));
    match (name, rest) {
        ("ZADD", ["XX", score, member]) => {
            if let Some(old) = set.get_mut(*member) {
                *old = score.parse().unwrap();
            }
            count(0)
        }
        ("ZADD", [score, member]) => {
            let is_new = set.insert((*member).to_owned(), score.parse().unwrap()).is_none();
            count(usize::from(is_new))
        }
        ("ZREM", [member]) => count(usize::from(set.remove(*member).is_some())),
        ("ZCARD", []) => count(set.len()),
        ("ZSCORE", [member]) => match set.get(*member) {
            Some(score) => lua.create_string(score.to_string()).map(Value::String),
            None => Ok(Value::Boolean(false)),
        },
        ("ZCOUNT", [low, high]) => count(set.values().filter(|score| is_within(**score, low, high)).count()),
        ("ZREMRANGEBYSCORE", [low, high]) => {
            let before = set.len();
            set.retain(|_, score| !is_within(*score, low, high));
            count(before - set.len())
        }
        ("ZRANGEBYSCORE", [low, high, "WITHSCORES", "LIMIT", offset, limit]) => {
            let mut found: Vec<_> = set.iter().filter(|(_, score)| is_within(**score, low, high)).collect();
            found.sort_by(|one, other| one.1.total_cmp(other.1));
            let found = found.iter().skip(offset.parse().unwrap()).take(limit.parse().unwrap());
            let table: Table = lua.create_table()?;
            for (member, score) in found {
                table.push(member.as_str())?;
                table.push(score.to_string())?;
            }
            Ok(Value::Table(table))
        }
        _ => panic!("not in the stub: {name} {rest:?}"),
    }
}

fn is_within(score: f64, low: &str, high: &str) -> bool {
    let bound = |text: &str| -> (f64, bool) {
        match text.strip_prefix('(') {
            Some(text) => (text.parse().unwrap(), true),
            None => (text.replace('+', "").parse().unwrap(), false),
        }
    };
    let ((low, above), (high, below)) = (bound(low), bound(high));
    (score > low || !above && score == low) && (score < high || !below && score == high)
}
