//! The clients: each a run of connections, on which it asks well or badly,
//! reads slowly, or goes away when it should not.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::time::{Instant, sleep, timeout};

use super::check::judge;
use super::questions::Question;
use super::world::{BOUND, HANG, Listener, World};
use crate::dice::Dice;
use crate::support::wire::{Answer, Broken, Wire};

/// What becomes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    GoOn,
    Leave,
}

/// One connection, and whose it is.
struct Visit {
    world: Arc<World>,
    listener: Arc<Listener>,
    wire: Wire,
    /// The last ETag that was seen.
    etag: Option<String>,
}

/// Lives until all is over.
pub(crate) async fn live(world: Arc<World>, number: u64) {
    let mut dice = world.dice("client", number);
    while !world.is_over() {
        let Some(listener) = world.listener().await else {
            return;
        };
        let slow = dice.percent(8);
        let narrow = slow.then_some(4096);
        let Ok(Ok(wire)) = timeout(HANG, Wire::connect(listener.address, narrow)).await else {
            if listener.drained.get().is_none() {
                world.violation("nobody listens");
            }
            sleep(Duration::from_millis(5)).await;
            continue;
        };
        let mut visit = Visit {
            world: world.clone(),
            listener,
            wire,
            etag: None,
        };
        world.count("clients", "connections");
        for _ in 0..dice.between(1, 30) {
            if world.is_over() {
                break;
            }
            let then = match slow {
                true => visit.read_slowly(&mut dice).await,
                false => visit.act(&mut dice).await,
            };
            if then == Then::Leave {
                break;
            }
            sleep(Duration::from_millis(dice.between(0, 40))).await;
        }
    }
}

impl Visit {
    async fn act(&mut self, dice: &mut Dice) -> Then {
        let questions = &self.world.questions;
        match dice.below(100) {
            0..55 => {
                let question = questions.good(dice);
                self.ask(&[question]).await
            }
            55..62 => {
                let mut question = questions.good(dice);
                question.method = "HEAD";
                self.ask(&[question]).await
            }
            62..72 => {
                let mut question = questions.good(dice);
                if let Some(etag) = &self.etag {
                    question.fields = format!("if-none-match: \"other\", {etag}\r\n");
                }
                // Twice, so that the second may know the answer's.
                match self.ask(&[question.clone()]).await {
                    Then::Leave => Then::Leave,
                    Then::GoOn => {
                        if let Some(etag) = &self.etag {
                            question.fields = format!("if-none-match: {etag}\r\n");
                        }
                        self.ask(&[question]).await
                    }
                }
            }
            72..80 => {
                let question = questions.bad(dice);
                self.ask(&[question]).await
            }
            80..83 => {
                let question = questions.own(dice);
                self.ask(&[question]).await
            }
            83..90 => {
                let count = dice.between(2, 6);
                let several: Vec<_> = (0..count).map(|_| questions.good(dice)).collect();
                self.ask(&several).await
            }
            90..93 => self.leave_in_request(dice).await,
            93..97 => self.leave_in_answer(dice).await,
            _ => self.half_close(dice).await,
        }
    }

    /// Asks all at once, and reads the answers.
    async fn ask(&mut self, questions: &[Question]) -> Then {
        let bytes: Vec<_> = questions.iter().flat_map(Question::bytes).collect();
        // Where that fails, the connection has ended; reading tells why.
        let _ = self.wire.send(bytes).await;
        self.hear(questions, Duration::ZERO).await
    }

    /// Reads the answers to what was asked just now, with pauses between them.
    async fn hear(&mut self, questions: &[Question], pause: Duration) -> Then {
        let sent = Instant::now();
        for (place, question) in (1..).zip(questions) {
            sleep(pause).await;
            self.world.count("requests", question.method);
            let read = timeout(HANG, self.wire.answer(question.method)).await;
            let answer = match read {
                Ok(Ok(answer)) => answer,
                Ok(Err(broken)) => {
                    self.broken(&broken, question, sent);
                    return Then::Leave;
                }
                Err(_elapsed) => {
                    self.violation("it hangs", question);
                    return Then::Leave;
                }
            };
            let took = sent.elapsed();
            if pause.is_zero() {
                self.world.took(took);
                if took > BOUND * place {
                    self.violation(&format!("it took {took:?}"), question);
                }
            }
            self.judge(question, &answer);
            if answer.head.closes() {
                return Then::Leave;
            }
        }
        if self.wire.held() > 0 {
            self.violation(
                "more came than was asked for",
                &questions[questions.len() - 1],
            );
            return Then::Leave;
        }
        Then::GoOn
    }

    fn judge(&mut self, question: &Question, answer: &Answer) {
        let status = answer.status.to_string();
        self.world.count("answers by status", status);
        self.world.count("answers by transport", "Http1");
        if let Some(etag) = answer.head.field("etag") {
            self.etag = Some(etag.to_owned());
        }
        if let Err(why) = judge(&self.world, question, answer) {
            let text = String::from_utf8_lossy(&answer.body[..answer.body.len().min(200)]);
            self.violation(&format!("{why}: {:?} {text}", answer.head), question);
        }
    }

    /// The connection has ended before an answer was whole. It may where the
    /// gateway drains, for what was sent after that began.
    fn broken(&self, broken: &Broken, question: &Question, sent: Instant) {
        let drained = self.listener.drained.get();
        let late = drained.is_some_and(|drained| sent >= *drained);
        match broken {
            Broken::Closed if late => self.world.count("clients", "closed by a drain"),
            Broken::Closed | Broken::Torn | Broken::Malformed(_) => {
                let since = drained.map(|drained| sent.duration_since(*drained));
                self.violation(&format!("{broken:?}, drained before {since:?}"), question);
            }
        }
    }

    fn violation(&self, what: &str, question: &Question) {
        let Question {
            method,
            target,
            fields,
            ..
        } = question;
        let end = target.len().min(120);
        let target = &target[..end];
        self.world
            .violation(format!("{method} {target} {fields:?}: {what}"));
    }

    /// Asks for several large pages, and takes its time with them.
    async fn read_slowly(&mut self, dice: &mut Dice) -> Then {
        let count = dice.between(1, 4);
        let several: Vec<_> = (0..count)
            .map(|_| self.world.questions.large(dice))
            .collect();
        let bytes: Vec<_> = several.iter().flat_map(Question::bytes).collect();
        let _ = self.wire.send(bytes).await;
        self.world.count("clients", "slow readings");
        let says_all = dice.percent(20);
        if says_all {
            let _ = self.wire.stream.shutdown().await;
        }
        let pause = Duration::from_millis(dice.between(10, 400));
        let then = self.hear(&several, pause).await;
        match says_all && then == Then::GoOn {
            true => self.see_the_end(&several[0]).await,
            false => then,
        }
    }

    /// Goes away before the request is whole.
    async fn leave_in_request(&mut self, dice: &mut Dice) -> Then {
        let bytes = match dice.below(4) {
            0 => (0..dice.between(1, 200))
                .map(|_| dice.next() as u8)
                .collect(),
            _ => self.world.questions.good(dice).bytes(),
        };
        let part = &bytes[..dice.below(bytes.len())];
        let _ = self.wire.send(part).await;
        sleep(Duration::from_millis(dice.between(0, 20))).await;
        self.world.count("clients", "gone in mid-request");
        self.go(dice)
    }

    /// Goes away before the answer is whole, or before it has begun.
    async fn leave_in_answer(&mut self, dice: &mut Dice) -> Then {
        let question = match dice.below(2) {
            0 => self.world.questions.large(dice),
            _ => self.world.questions.good(dice),
        };
        self.world.count("requests", question.method);
        let _ = self.wire.send(question.bytes()).await;
        let patience = Duration::from_millis(dice.between(0, 30));
        let _ = timeout(patience, self.wire.more()).await;
        self.world.count("clients", "gone in mid-answer");
        self.go(dice)
    }

    /// Ends the connection, or resets it.
    fn go(&mut self, dice: &mut Dice) -> Then {
        if dice.percent(50) {
            self.wire.will_reset();
        }
        Then::Leave
    }

    /// Says that nothing more will come, and waits for the answer all the same.
    async fn half_close(&mut self, dice: &mut Dice) -> Then {
        let question = self.world.questions.good(dice);
        let _ = self.wire.send(question.bytes()).await;
        let _ = self.wire.stream.shutdown().await;
        self.world.count("clients", "half-closed");
        match self
            .hear(std::slice::from_ref(&question), Duration::ZERO)
            .await
        {
            Then::GoOn => self.see_the_end(&question).await,
            Then::Leave => Then::Leave,
        }
    }

    /// The gateway ends the connection of one who has said that nothing more
    /// will come, once all is answered.
    async fn see_the_end(&mut self, question: &Question) -> Then {
        let ended = timeout(BOUND, self.wire.more()).await;
        if ended != Ok(false) {
            self.violation(&format!("{ended:?} after its last answer"), question);
        }
        Then::Leave
    }
}
