//! A stub of the engine, which runs the real scripts. It has a copy that may take over.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use mlua::{Function, Lua, Value, Variadic};

/// What a server has stored.
#[derive(Clone, Default)]
struct Data {
    sets: BTreeMap<String, BTreeMap<String, f64>>,
    hashes: BTreeMap<String, BTreeMap<String, String>>,
    streams: BTreeMap<String, Vec<(u64, Vec<String>)>>,
}

#[derive(Default)]
struct State {
    now: u64,
    /// How far the primary's clock is behind the real time.
    behind: u64,
    run_id: u64,
    replication_id: u64,
    data: Data,
}

/// A primary, its copy, and what was saved.
pub(super) struct Server {
    state: Rc<RefCell<State>>,
    scripts: Vec<Function>,
    lua: Lua,
    copy: Data,
    saved: Data,
    /// Of primary and copy; a server keeps its own until it is restarted.
    run_ids: [u64; 2],
    /// The replication id of the other primary, while there are two.
    other_replication_id: u64,
    next_id: u64,
}

impl Server {
    pub(super) fn new(scripts: &[String]) -> Self {
        let lua = Lua::new();
        let state = Rc::new(RefCell::new(State::default()));
        let own = state.clone();
        let call = lua.create_function(move |lua, arguments: Variadic<String>| {
            let call: Vec<_> = arguments.iter().map(String::as_str).collect();
            own.borrow_mut().command(lua, &call)
        });
        let redis = lua.create_table().unwrap();
        redis.set("call", call.unwrap()).unwrap();
        lua.globals().set("redis", redis).unwrap();
        let load = |code: &String| lua.load(code).into_function().unwrap();
        let mut new = Self {
            state,
            scripts: scripts.iter().map(load).collect(),
            lua,
            copy: Data::default(),
            saved: Data::default(),
            run_ids: [1, 2],
            other_replication_id: 3,
            next_id: 3,
        };
        new.start_life();
        new
    }

    /// Runs a script.
    pub(super) fn call(&self, now: u64, script: usize, keys: &[&str], arguments: &[&str]) -> Value {
        self.state.borrow_mut().now = now;
        let texts = |texts: &[&str]| self.lua.create_sequence_from(texts.to_vec()).unwrap();
        let globals = self.lua.globals();
        globals.set("KEYS", texts(keys)).unwrap();
        globals.set("ARGV", texts(arguments)).unwrap();
        self.scripts[script].call(()).unwrap()
    }

    /// The members of a sorted set by their scores.
    pub(super) fn members(&self, key: &str) -> BTreeMap<String, f64> {
        let state = self.state.borrow();
        state.data.sets.get(key).cloned().unwrap_or_default()
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn start_life(&mut self) {
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

    /// With what was saved, or empty. Some servers keep their replication id.
    pub(super) fn restart(&mut self, is_empty: bool, keeps_id: bool) {
        let replication_id = self.state.borrow().replication_id;
        self.run_ids[0] = self.new_id();
        self.start_life();
        let mut state = self.state.borrow_mut();
        if keeps_id {
            state.replication_id = replication_id;
        }
        state.data = match is_empty {
            true => Data::default(),
            false => self.saved.clone(),
        };
    }

    /// The copy takes over with what it has, and the primary becomes its copy.
    pub(super) fn fail_over(&mut self) {
        self.run_ids.swap(0, 1);
        self.start_life();
        self.state.borrow_mut().data = self.copy.clone();
    }

    /// Both are primaries, and the other one is called from now on: not covered.
    pub(super) fn call_other_primary(&mut self) {
        self.run_ids.swap(0, 1);
        let mut state = self.state.borrow_mut();
        state.run_id = self.run_ids[0];
        std::mem::swap(&mut state.replication_id, &mut self.other_replication_id);
        std::mem::swap(&mut state.data, &mut self.copy);
    }

    pub(super) fn set_clock_back(&mut self, by: u64) {
        self.state.borrow_mut().behind += by;
    }
}

impl State {
    fn command(&mut self, lua: &Lua, call: &[&str]) -> mlua::Result<Value> {
        let clock = 1_700_000_000_000 + self.now - self.behind;
        let Data {
            sets,
            hashes,
            streams,
        } = &mut self.data;
        let list = |list: [String; 2]| lua.create_sequence_from(list).map(Value::Table);
        let number = |number: usize| Ok(Value::Number(number as f64));
        match call {
            ["INFO", "server", "replication"] => {
                let [run_id, replication_id] = [self.run_id, self.replication_id];
                let info = format!("run_id:{run_id}\r\nmaster_replid:{replication_id}\r\n");
                lua.create_string(info).map(Value::String)
            }
            ["TIME"] => list([clock / 1000, clock % 1000 * 1000].map(|part| part.to_string())),
            ["DEL", keys @ ..] => {
                for key in keys {
                    sets.remove(*key);
                    streams.remove(*key);
                }
                number(0)
            }
            // No key rests.
            ["PTTL", _] => Ok(Value::Number(-2.0)),
            ["HSET", key, fields @ ..] => {
                let hash = hashes.entry((*key).to_owned()).or_default();
                let fields = fields.chunks(2);
                hash.extend(fields.map(|field| (field[0].to_owned(), field[1].to_owned())));
                number(0)
            }
            ["HMGET", key, fields @ ..] => {
                let hash = hashes.entry((*key).to_owned()).or_default();
                let fields = fields.iter().map(|field| hash.get(*field).cloned());
                // A field that is not there is false, which is not the end of the table.
                let or_false = |field: Option<String>| match field {
                    Some(text) => lua.create_string(text).map(Value::String),
                    None => Ok(Value::Boolean(false)),
                };
                let fields: mlua::Result<Vec<_>> = fields.map(or_false).collect();
                lua.create_sequence_from(fields?).map(Value::Table)
            }
            ["XADD", key, "MAXLEN", most, id, fields @ ..] => {
                let stream = streams.entry((*key).to_owned()).or_default();
                let id = number_of(id);
                assert!(stream.last().is_none_or(|(last, _)| *last < id), "ids rise");
                stream.push((id, fields.iter().map(|&field| field.to_owned()).collect()));
                let excess = stream.len().saturating_sub(most.parse().unwrap());
                stream.drain(..excess);
                number(0)
            }
            ["XLEN", key] => number(streams.get(*key).map_or(0, Vec::len)),
            ["XRANGE", key, from, "+"] => {
                let from = number_of(from.trim_start_matches('('));
                let table = lua.create_table()?;
                for (id, fields) in streams.get(*key).into_iter().flatten() {
                    if *id <= from {
                        continue;
                    }
                    let entry = lua.create_table()?;
                    entry.push(format!("{id}-0"))?;
                    entry.push(fields.clone())?;
                    table.push(entry)?;
                }
                Ok(Value::Table(table))
            }
            [name, key, rest @ ..] => {
                let set = sets.entry((*key).to_owned()).or_default();
                let value = sorted_set(lua, set, name, rest);
                sets.retain(|_, set| !set.is_empty());
                value
            }
            [] | [_] => panic!("not in the stub: {call:?}"),
        }
    }
}

/// The first number of an id of a stream.
fn number_of(id: &str) -> u64 {
    id.split('-').next().unwrap().parse().unwrap()
}

fn sorted_set(
    lua: &Lua,
    set: &mut BTreeMap<String, f64>,
    name: &str,
    rest: &[&str],
) -> mlua::Result<Value> {
    let number = |number: usize| Ok(Value::Number(number as f64));
    let list = |found: Vec<(&String, &f64)>| {
        let texts = |(member, score): (&String, &f64)| [member.clone(), score.to_string()];
        let texts = found.into_iter().flat_map(texts);
        lua.create_sequence_from(texts).map(Value::Table)
    };
    match (name, rest) {
        ("ZADD", ["XX", score, member]) => {
            if let Some(old) = set.get_mut(*member) {
                *old = score.parse().unwrap();
            }
            number(0)
        }
        ("ZADD", [score, member]) => {
            set.insert((*member).to_owned(), score.parse().unwrap());
            number(0)
        }
        ("ZREM", [member]) => number(usize::from(set.remove(*member).is_some())),
        ("ZSCORE", [member]) => match set.get(*member) {
            Some(score) => lua.create_string(score.to_string()).map(Value::String),
            None => Ok(Value::Boolean(false)),
        },
        ("ZCOUNT", [low, high]) => number(set.values().filter(within(low, high)).count()),
        ("ZREMRANGEBYSCORE", [low, high]) => {
            let is_within = within(low, high);
            set.retain(|_, score| !is_within(&&*score));
            number(0)
        }
        ("ZRANGEBYSCORE", [low, high, "WITHSCORES", "LIMIT", offset, limit]) => {
            let is_within = within(low, high);
            let mut found: Vec<_> = set.iter().filter(|(_, score)| is_within(score)).collect();
            found.sort_by(|one, other| one.1.total_cmp(other.1));
            let found = found.into_iter().skip(offset.parse().unwrap());
            list(found.take(limit.parse().unwrap()).collect())
        }
        // Of fewer members than the scripts keep.
        ("ZREMRANGEBYRANK", _) => number(0),
        ("ZREVRANGE", [..]) => list(set.iter().collect()),
        _ => panic!("not in the stub: {name} {rest:?}"),
    }
}

fn within(low: &str, high: &str) -> impl Fn(&&f64) -> bool {
    let bound = |text: &str| match text.strip_prefix('(') {
        Some(text) => (text.parse::<f64>().unwrap(), true),
        None => (text.parse().unwrap(), false),
    };
    let ((low, above), (high, below)) = (bound(low), bound(high));
    move |score| {
        let (above_low, below_high) = (**score > low, **score < high);
        (above_low || !above && **score == low) && (below_high || !below && **score == high)
    }
}
