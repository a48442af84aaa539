//! What clients and the operator ask for.

use std::sync::Arc;

use bytes::Bytes;
use http::Request;
use http::header::{ETAG, HOST, IF_NONE_MATCH};
use http_body_util::{BodyExt, Empty};
use ordgate::cache::purge::Purge;
use ordgate::connections::Activity;
use ordgate::gateway::Session;

use super::{Event, Play};
use crate::check::{Reply, Sent};
use crate::dice::Dice;
use crate::world::{REFUSED, REST, Subject, TICKERS, TYPED, Target, rest_path};

impl Play {
    /// A client asks something.
    pub(super) fn ask(&mut self) {
        let (text, target) = self.question();
        let client = self.clients.len();
        let nth = self.tick();
        let mut request = Request::get(&*text);
        let mut had = None;
        if self.dice.percent(15)
            && let Some(tag) = self.tags.get(&text)
        {
            request = request.header(IF_NONE_MATCH, tag);
            had = Some(tag.clone());
        }
        self.tell(|| format!("client {client} asks {text}"));
        self.judge.sent(Sent::new(text, target, had, nth, self.now));
        let request = request.header(HOST, "a.example");
        let request = request.body(Empty::<Bytes>::new()).unwrap();
        let activity = Arc::new(Activity::new(&self.clock));
        let address = [127, 0, 0, 1].into();
        let session = Arc::new(Session::new(address, client as u64, activity));
        let answering = self.gateway.answer(&session, request);
        let replies = self.replies.clone();
        let task = tokio::spawn(async move {
            let Ok(response) = answering.await;
            let (head, body) = response.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let field = |name: &str| {
                let value = head.headers.get(name).map(|value| value.to_str().unwrap());
                value.unwrap_or_default().to_owned()
            };
            let reply = Reply {
                status: head.status,
                body,
                etag: head.headers.get(ETAG).cloned(),
                content_type: field("content-type"),
                cache_status: field("cache-status"),
                cache_control: field("cache-control"),
            };
            replies.lock().unwrap().push((client, reply));
        });
        self.clients.push(task.abort_handle());
        if self.dice.percent(self.weather.impatient) {
            let after = self.dice.around(300);
            self.plan(after, Event::Leave(client));
        }
    }

    /// What a client asks, as it spells it; and what it means.
    pub(super) fn question(&mut self) -> (String, Target) {
        let dice = &mut self.dice;
        let world = &self.world;
        let chain = &world.chain;
        // How far below the tip somebody asks.
        let depth = |dice: &mut Dice, most: u64| match self.weather.deep {
            true => dice.between(14, 55),
            false => dice.between(0, most).min(dice.between(0, most)),
        };
        let recent = |dice: &mut Dice| {
            let back = depth(dice, 12) as usize;
            chain[chain.len() - 1 - back.min(chain.len() - 1)]
        };
        // Of all that ever were, orphans too, or of the last.
        let any = |dice: &mut Dice| match dice.percent(30) && !self.weather.deep {
            true => dice.below(world.blocks.len()),
            false => recent(dice),
        };
        if dice.percent(12) {
            let (tip, height) = (dice.below(2), world.tip() + 1 - depth(dice, 14) as u32);
            let path = rest_path(tip, height);
            return (format!("{path}?any=1&any=2"), Target::read(&path));
        }
        let (tokens, kind) = (self.weather.tokens, dice.between(0, 99));
        let subject = match dice.between(20, 99) {
            _ if kind < tokens => Subject::Token((*dice.pick(&TICKERS)).to_owned()),
            0..=49 => Subject::Height(world.tip() + 1 - depth(dice, 14) as u32),
            50..=64 => Subject::Hash(world.blocks[any(dice)].hash.clone()),
            65 => Subject::Hash(dice.hash()),
            66 => Subject::Tx(dice.hash()),
            67 => Subject::Hash((*dice.pick(&REFUSED)).to_owned()),
            _ => {
                let block = any(dice);
                match &world.blocks[block].txs[..] {
                    [] => Subject::Height(world.blocks[block].height),
                    txs => Subject::Tx(world.tx_id(dice.pick(txs).0).to_owned()),
                }
            }
        };
        let mut target = Target {
            subject,
            limit: 20,
            offset: 0,
            operation: None,
        };
        let mut path = match &target.subject {
            Subject::Token(ticker) if dice.percent(20) => {
                format!("/ordinals/v1/brc-20/tokens/{}", ticker.to_uppercase())
            }
            Subject::Token(ticker) => {
                return (format!("/ordinals/v1/brc-20/tokens/{ticker}"), target);
            }
            Subject::Height(height) => format!("/runes/v1/blocks/{height}/activity?"),
            Subject::Hash(hash) => format!("/runes/v1/blocks/{hash}/activity?"),
            Subject::Tx(tx) => format!("/runes/v1/transactions/{tx}/activity?"),
            Subject::Status(_) | Subject::Rest(..) => unreachable!("it is not asked for here"),
        };
        if matches!(target.subject, Subject::Token(_)) {
            return (path, target);
        }
        if dice.percent(60) {
            target.limit = match dice.percent(20) {
                true => self.weather.setup.window,
                false => dice.between(1, 60).min(dice.between(1, 60)) as usize,
            };
            path.push_str(&format!("limit={}&", target.limit));
        }
        if dice.percent(50) {
            target.offset = dice.between(0, 30).min(dice.between(0, 45)) as usize;
            path.push_str(&format!("offset={}&", target.offset));
        }
        let of_block = matches!(target.subject, Subject::Height(_) | Subject::Hash(_));
        if of_block && dice.percent(12) {
            let operation = *dice.pick(&["mint", "send", "burn"]);
            target.operation = Some(operation.to_owned());
            path.push_str(&format!("operation_type={operation}"));
        }
        (path, target)
    }

    /// An operator purges something that somebody has asked for.
    pub(super) fn purge(&mut self) {
        let Some(last) = self.clients.len().checked_sub(1) else {
            return;
        };
        let back = self.dice.below(last.min(20) + 1);
        let target = self.judge.client(last - back).target.clone();
        let route = match target.subject {
            Subject::Token(_) => TYPED[0],
            Subject::Tx(_) => TYPED[1],
            Subject::Height(_) | Subject::Hash(_) | Subject::Status(_) => TYPED[2],
            Subject::Rest(tip, _) => REST[tip],
        };
        let text = |id: &str| Purge::Text(id.into());
        let path = |path: String| Purge::Path {
            route,
            path: path.into(),
        };
        let purges = match (self.dice.between(0, 9), &target.subject) {
            (0, _) => vec![Purge::All],
            (1, _) => vec![Purge::Route(route)],
            (2, _) => {
                let from = self.world.tip() - self.dice.between(0, 12) as u32;
                vec![Purge::Heights {
                    tip: None,
                    from,
                    to: from + self.dice.between(0, 2) as u32,
                }]
            }
            (3..=5, Subject::Tx(id) | Subject::Hash(id)) => vec![text(id)],
            (_, Subject::Token(ticker)) => {
                vec![path(format!("/ordinals/v1/brc-20/tokens/{ticker}"))]
            }
            (_, Subject::Height(height)) => {
                vec![path(format!("/runes/v1/blocks/{height}/activity"))]
            }
            // As the admin listener has it: what a path's answers are cut from goes
            // with them.
            (_, Subject::Hash(hash)) => {
                let own = path(format!("/runes/v1/blocks/{hash}/activity"));
                vec![own, text(hash)]
            }
            (_, Subject::Tx(tx)) => {
                let own = path(format!("/runes/v1/transactions/{tx}/activity"));
                vec![own, text(tx)]
            }
            (_, Subject::Rest(tip, height)) => vec![path(rest_path(*tip, *height))],
            (_, Subject::Status(_)) => Vec::new(),
        };
        for what in purges {
            self.tell(|| format!("purge {what:?}"));
            let nth = self.tick();
            self.gateway
                .cache
                .store()
                .purge(std::slice::from_ref(&what), drop);
            self.judge.purged(what, nth);
        }
    }
}
