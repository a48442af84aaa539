//! Stored responses in the real engine.

use std::sync::Arc;

use super::{EngineScript, RedisEngine};
use crate::shared::engine::entries::{
    EntryName, FillToken, FoundEntry, GET, GIVE_UP, GivenUp, LookUp, LookedUp, PUT, PutEntry,
    SharedEntries,
};
use crate::shared::engine::{EngineFuture, EngineValue, SharedError};

/// An engine that keeps responses, by the scripts for that.
pub struct RedisEntries {
    engine: Arc<RedisEngine>,
    get: EngineScript,
    put: EngineScript,
    give_up: EngineScript,
}

impl RedisEntries {
    /// Keeps responses in an engine.
    pub fn new(engine: Arc<RedisEngine>) -> Self {
        Self {
            engine,
            get: EngineScript::new(GET),
            put: EngineScript::new(PUT),
            give_up: EngineScript::new(GIVE_UP),
        }
    }
}

impl SharedEntries for RedisEntries {
    fn look_up<'t>(
        &'t self,
        name: &'t EntryName,
        look_up: &'t LookUp,
    ) -> EngineFuture<'t, LookedUp> {
        Box::pin(async move {
            let arguments = look_up.arguments().map(String::into_bytes);
            let keys = [&*name.value, &*name.lock];
            let answer = self.engine.run(&self.get, &keys, &arguments).await?;
            looked_up(answer).ok_or(SharedError::Unreadable)
        })
    }

    fn put<'t>(&'t self, name: &'t EntryName, entry: &'t PutEntry) -> EngineFuture<'t, bool> {
        Box::pin(async move {
            let arguments = entry.arguments().map(String::into_bytes).into_iter();
            let arguments: Vec<_> = arguments.chain([entry.value.clone()]).collect();
            let keys = [&*name.value, &*name.lock];
            let answer = self.engine.run(&self.put, &keys, &arguments).await?;
            is_one(&answer)
        })
    }

    fn give_up<'t>(&'t self, name: &'t EntryName, given_up: GivenUp) -> EngineFuture<'t, bool> {
        Box::pin(async move {
            let arguments = given_up.arguments().map(String::into_bytes);
            let keys = [&*name.lock];
            let answer = self.engine.run(&self.give_up, &keys, &arguments).await?;
            is_one(&answer)
        })
    }
}

fn looked_up(answer: EngineValue) -> Option<LookedUp> {
    let EngineValue::List(list) = answer else {
        return None;
    };
    let mut list = list.into_iter();
    let now_ms = list.next()?.number()?;
    let kind = list.next()?;
    let found = match (kind.text()?, list.next(), list.next()) {
        ("have", Some(id), Some(EngineValue::Bytes(value))) => FoundEntry::Have {
            id: FillToken::read(id.bytes()?)?,
            value,
        },
        ("lead", None, None) => FoundEntry::Lead,
        ("follow", None, None) => FoundEntry::Follow,
        ("none", None, None) => FoundEntry::None,
        _ => return None,
    };
    Some(LookedUp { now_ms, found })
}

fn is_one(answer: &EngineValue) -> Result<bool, SharedError> {
    match answer.number() {
        Some(0) => Ok(false),
        Some(1) => Ok(true),
        Some(_) | None => Err(SharedError::Unreadable),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_replies_of_the_script_are_read() {
        let text = |text: &str| EngineValue::Bytes(text.into());
        let id = "0".repeat(31) + "7";
        let list = |rest: &[&str]| {
            let rest = rest.iter().map(|part| text(part));
            EngineValue::List([EngineValue::Number(5)].into_iter().chain(rest).collect())
        };
        let have = looked_up(list(&["have", &id, "v"])).unwrap();
        assert_eq!(have.now_ms, 5);
        let value = b"v".to_vec();
        let id_read = FillToken(7);
        assert_eq!(have.found, FoundEntry::Have { id: id_read, value });
        for (kind, found) in [
            ("lead", FoundEntry::Lead),
            ("follow", FoundEntry::Follow),
            ("none", FoundEntry::None),
        ] {
            assert_eq!(looked_up(list(&[kind])).unwrap().found, found);
            assert_eq!(looked_up(list(&[kind, "more"])), None);
        }
        for wrong in [
            &[][..],
            &["have"],
            &["have", &id],
            &["have", "x", "v"],
            &["other"],
        ] {
            assert_eq!(looked_up(list(wrong)), None, "{wrong:?}");
        }
        assert_eq!(looked_up(EngineValue::Number(1)), None);
        assert_eq!(
            is_one(&EngineValue::Number(2)),
            Err(SharedError::Unreadable)
        );
    }
}
