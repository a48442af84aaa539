//! The upstream: what it is asked, and what it answers.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http_body_util::BodyExt;
use ordgate::pages::BodyIndex;
use ordgate::upstream::{Answer, AnswerBody, Failure, Priority};
use tokio::sync::mpsc;

use super::{Event, Play};
use crate::check::{Asked, UpstreamAnswer};
use crate::plain::origin::Pieces;
use crate::stand_in;
use crate::world::{RUNES, Subject, Target};

impl Play {
    /// Plans what becomes of new requests to the upstream.
    pub(super) fn meet(&mut self) -> Result<(), String> {
        // Which of several tasks goes on first is not ours to say; so those who
        // ask at one moment are put in an order that is the seed's alone.
        let mut asked = std::mem::take(&mut *self.stand_in.asked());
        asked.sort_by(|one, other| one.text.cmp(&other.text));
        for asked in asked {
            let stand_in::Asked {
                text,
                priority,
                reply,
                ..
            } = asked;
            let target = Target::read(&text);
            let (id, nth) = (self.waiting.len(), self.tick());
            self.waiting.push(Some(reply));
            self.tell(|| format!("upstream {id} is asked {text} ({priority:?})"));
            let is_probe = priority == Priority::Probe;
            let is_behind = target.tip() == RUNES
                && !is_probe
                && self.weather.behind > 0
                && self.dice.percent(self.weather.behind);
            let asked = Asked::new(text, target, (nth, self.now), is_behind);
            self.judge.asked(id, asked, is_probe)?;
            let [tag, _, _] = self.weather.latency;
            let fails = match is_probe {
                true => self.clouded || self.dice.percent(self.weather.failures / 2),
                false => self.dice.percent(self.weather.failures),
            };
            let first = self.dice.around(tag);
            match fails {
                true => self.plan(first + 10, Event::Fail(id)),
                false => self.plan(first, Event::Tag(id)),
            }
        }
        Ok(())
    }

    pub(super) fn reply(&mut self, id: usize, with: Result<Answer, Failure>) {
        if let Some(reply) = self.waiting[id].take() {
            // Who asked may have gone.
            drop(reply.send(with));
        }
    }

    pub(super) fn deliver(&mut self, id: usize) {
        let told = self.judge.delivered(&self.world, id, self.now);
        let asked = self.judge.asked_of(id);
        let is_tagless = self.weather.tagless && asked.target.tip() == RUNES;
        let has_tag = asked.target.is_status() || !is_tagless;
        let is_rest = matches!(asked.target.subject, Subject::Rest(..));
        let UpstreamAnswer {
            status,
            content_type,
            body,
            tag,
            what,
        } = told;
        self.tell(|| format!("upstream {id} answers {status} {tag} {what}"));
        let body = match is_rest {
            false => {
                let body = Bytes::from(body);
                let index = BodyIndex::read(&body).unwrap_or_default();
                AnswerBody::Whole(body, index)
            }
            true => {
                let (coming, pieces) = mpsc::unbounded_channel();
                coming.send(Ok(Bytes::from(body))).unwrap();
                if self.dice.percent(50) {
                    self.coming.insert(id, coming);
                    // Whoever waits goes alone after five seconds.
                    let after = self.dice.around(self.weather.latency[2]).min(4_500);
                    self.plan(after, Event::End(id));
                }
                AnswerBody::Coming(Pieces(pieces).boxed_unsync(), None)
            }
        };
        let mut head = Response::builder()
            .status(status)
            .header("content-type", content_type);
        if has_tag {
            head = head.header("etag", tag);
        }
        let (head, ()) = head.body(()).unwrap().into_parts();
        let answer = Answer {
            head,
            body,
            endpoint: 0,
            took: Duration::from_millis(self.now - self.judge.asked_of(id).sent),
        };
        self.reply(id, Ok(answer));
    }
}
