//! What happens: requests of clients, answers of the origin.

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT, CACHE_CONTROL, ETAG, HOST, IF_NONE_MATCH};
use http::{Request, Response};
use http_body_util::Empty;
use ordgate::connections::Activity;
use ordgate::gateway::Session;
use ordgate::reason::Reason;
use ordgate::upstream::Failure;
use tokio::sync::mpsc;

use super::origin::{Pieces, exchange, read};
use super::{Asked, Event, KINDS, Play, Reply, Sent};
use crate::stand_in;

impl Play {
    /// The origin receives a request.
    pub(super) fn meet(&mut self, asked: stand_in::Asked) -> Result<(), String> {
        let (target, fields, reply) = (asked.text, asked.fields, asked.reply);
        let resource: usize = target[1..].parse().unwrap();
        let text = |name| {
            fields
                .get(name)
                .map(|value: &http::HeaderValue| value.to_str().unwrap().to_owned())
        };
        let asked = Asked {
            resource,
            accept: text(ACCEPT).unwrap_or_default(),
            tag: text(IF_NONE_MATCH),
            at: self.now,
            plain: fields.get(CACHE_CONTROL).is_none(),
            version: None,
            reply: Some(reply),
            body: None,
            rest: Vec::new(),
            over: false,
        };
        let kind = KINDS[resource];
        let is_calm = self.weather.failures == 0 && self.weather.breaks == 0;
        let beside = self.asked.iter().find(|other| {
            !other.over
                && other.plain
                && other.resource == resource
                && (!kind.varies || other.accept == asked.accept)
        });
        // A client's own condition on what nobody has goes up as it is.
        let is_own = asked.tag.is_some() && self.own_condition(&asked);
        if let Some(beside) = beside
            && is_calm
            && kind.is_shared()
            && asked.plain
            && !is_own
            && !self.own_condition(beside)
            // One that takes longer to come than it is fresh is asked for again.
            && self.weather.pace < 100
        {
            return Err(format!(
                "{target} is asked for at {} beside a request of {}",
                self.now, beside.at
            ));
        }
        let id = self.asked.len();
        self.tell(|| format!("request {id} for {target}: {fields:?}"));
        self.asked.push(asked);
        let latency = self.dice.around(self.weather.latency);
        self.plan(1 + latency, Event::Evaluate(self.asked.len() - 1));
        Ok(())
    }

    /// Whether a request bears a client's own condition: ordgate's own asks
    /// about what it has stored, which it would not forward otherwise.
    pub(super) fn own_condition(&self, asked: &Asked) -> bool {
        asked.tag.is_some()
            && self
                .sent
                .iter()
                .any(|sent| sent.resource == asked.resource && sent.held == asked.tag)
    }

    pub(super) fn happen(&mut self, event: Event) {
        let over = self.now >= self.weather.length;
        match event {
            Event::Client if over => {}
            Event::Client => {
                let several = if self.dice.percent(30) { 5 } else { 1 };
                let resource = self.dice.below(KINDS.len());
                for _ in 0..several {
                    self.ask(resource);
                }
                let next = self.dice.around(150);
                self.plan(next, Event::Client);
            }
            Event::Change if over => {}
            Event::Change => {
                let resource = self.dice.below(KINDS.len());
                self.versions[resource].push(self.now);
                self.tell(|| format!("{resource} changes"));
                let next = self.dice.around(700);
                self.plan(next, Event::Change);
            }
            Event::Evaluate(id) => self.evaluate(id),
            Event::Piece(id) => self.piece(id),
            Event::Leave(client) => {
                if !std::mem::replace(&mut self.sent[client].over, true) {
                    self.tasks[client].abort();
                }
            }
        }
    }

    /// The tag of a representation: variants have tags of their own.
    pub(super) fn tag(resource: usize, version: usize, accept: &str) -> String {
        let variant = if KINDS[resource].varies { accept } else { "" };
        format!("\"{resource}-{version}-{variant}\"")
    }

    pub(super) fn evaluate(&mut self, id: usize) {
        let asked = &mut self.asked[id];
        let Some(reply) = asked.reply.take() else {
            return;
        };
        let (resource, kind) = (asked.resource, KINDS[asked.resource]);
        let version = self.versions[resource].len() - 1;
        asked.version = Some(version);
        if self.dice.percent(self.weather.failures) {
            asked.over = true;
            let failed = match self.dice.percent(50) {
                true => Err(Failure::new(Reason::ConnectionClosed)),
                false => Ok(exchange(Response::builder().status(500), Empty::new())),
            };
            drop(reply.send(failed));
            return;
        }
        let tag = Self::tag(resource, version, &asked.accept);
        let mut head = Response::builder().header(CACHE_CONTROL, kind.control);
        if kind.varies {
            head = head.header("vary", "accept");
        }
        if kind.tagged {
            head = head.header(ETAG, &tag);
            let matches = |tags: &String| tags.split(", ").any(|one| one == tag);
            if asked.tag.as_ref().is_some_and(matches) {
                asked.over = true;
                drop(reply.send(Ok(exchange(head.status(304), Empty::new()))));
                self.tell(|| format!("request {id}: 304 {tag}"));
                return;
            }
        }
        let mut body = format!("{resource} {version} {} {id} ", asked.accept).into_bytes();
        body.resize(kind.length, b'x');
        if kind.sized {
            head = head.header("content-length", body.len());
        }
        let body = Bytes::from(body);
        let third = body.len() / 3;
        asked.rest = vec![
            body.slice(2 * third..),
            body.slice(third..2 * third),
            body.slice(..third),
        ];
        let (feed, pieces) = mpsc::unbounded_channel();
        asked.body = Some(feed);
        drop(reply.send(Ok(exchange(head, Pieces(pieces)))));
        self.tell(|| format!("request {id}: 200 {tag}"));
        self.plan(0, Event::Piece(id));
    }

    pub(super) fn piece(&mut self, id: usize) {
        let pace = self.dice.around(self.weather.pace);
        let breaks = self.dice.percent(self.weather.breaks);
        let asked = &mut self.asked[id];
        let Some(feed) = &asked.body else {
            return;
        };
        let next = match (asked.rest.pop(), breaks) {
            (Some(_), true) => Some(Err("it breaks off".into())),
            (Some(piece), false) => Some(Ok(piece)),
            (None, _) => None,
        };
        let goes_on = matches!(next, Some(Ok(_)));
        // Who reads it may have gone.
        let what = (next.is_some(), next.as_ref().is_some_and(Result::is_ok));
        let is_read = next.is_none_or(|next| feed.send(next).is_ok());
        self.tell(|| format!("request {id}: a piece {what:?}, read: {is_read}"));
        let asked = &mut self.asked[id];
        if goes_on && is_read {
            self.plan(pace, Event::Piece(id));
        } else {
            asked.body = None;
            asked.over = true;
        }
    }

    pub(super) fn ask(&mut self, resource: usize) {
        let client = self.sent.len();
        let accept = *self.dice.pick(&["a", "b"]);
        let mut request = Request::get(format!("/{resource}")).header(ACCEPT, accept);
        let fresh = self.dice.percent(5);
        if fresh {
            request = request.header(CACHE_CONTROL, "no-cache");
        }
        let held = self.tags.get(&resource).cloned();
        let held = held.filter(|_| self.dice.percent(15));
        if let Some(held) = &held {
            request = request.header(IF_NONE_MATCH, held);
        }
        self.tell(|| format!("client {client} asks for {resource}: {accept} {fresh} {held:?}"));
        self.sent.push(Sent {
            resource,
            accept,
            at: self.now,
            fresh,
            held,
            over: false,
        });
        let activity = Arc::new(Activity::new(&self.clock));
        let address = [127, 0, 0, 1].into();
        let session = Arc::new(Session::new(address, client as u64, activity));
        let answering = self.gateway.answer(
            &session,
            request
                .header(HOST, "a.example")
                .body(Empty::<Bytes>::new())
                .unwrap(),
        );
        let (replies, present) = (self.replies.clone(), self.present.clone());
        let slow = self.dice.percent(20);
        let task = tokio::spawn(async move {
            let Ok(response) = answering.await;
            let at = present.load(std::sync::atomic::Ordering::Relaxed);
            let (head, body) = response.into_parts();
            let body = read(body, slow).await;
            let field = |name: &str| {
                let all = head.headers.get_all(name).iter();
                let all: Vec<_> = all.map(|value| value.to_str().unwrap()).collect();
                (!all.is_empty()).then(|| all.join(", "))
            };
            let reply = Reply {
                client,
                at,
                status: head.status,
                etag: field("etag"),
                how: field("cache-status").unwrap_or_default(),
                body,
            };
            replies.lock().unwrap().push(reply);
        });
        self.tasks.push(task.abort_handle());
        if self.dice.percent(self.weather.impatient) {
            let after = self.dice.around(400);
            self.plan(after, Event::Leave(client));
        }
    }
}
