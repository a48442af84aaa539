//! What clients ask, right and wrong.

use ordgate::sandbox::Sandbox;

use super::world::INVALID;
use crate::dice::Dice;

/// What a question is about, for who judges the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum About {
    /// A token that there is, by its ticker in lower case.
    Token(String),
    /// A token that there is not.
    NoToken,
    Block {
        /// By height, or else by hash.
        height: Option<u32>,
        hash: Option<String>,
        /// So far below the tip that nothing undoes it.
        deep: bool,
    },
    Transaction(String),
    /// Nothing that there is an answer to.
    Invalid,
    /// A document of the gateway's own, or a preflight.
    Own,
}

/// One request.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    pub(crate) method: &'static str,
    pub(crate) target: String,
    /// Field lines beside Host, and after a blank line perhaps a body.
    pub(crate) fields: String,
    pub(crate) about: About,
}

/// Blocks so far below the first tip are deep.
const DEEP: u32 = 40;

pub(crate) struct Questions {
    tokens: Vec<String>,
    transactions: Vec<String>,
    lowest: u32,
    tip: u32,
    /// Hashes by height, of those that are deep.
    hashes: Vec<(u32, String)>,
}

impl Questions {
    pub(crate) fn about(sandbox: &Sandbox) -> Self {
        let examples = sandbox.examples();
        let tip = sandbox.tip().height;
        let lowest = 840_000;
        let hash = |height| Some((height, sandbox.hash_at(height)?));
        Self {
            tokens: examples.tokens,
            transactions: examples.transactions,
            lowest,
            tip,
            hashes: (lowest..tip - DEEP).filter_map(hash).collect(),
        }
    }

    /// A question that a good client might ask. Some are asked far more often
    /// than others.
    pub(crate) fn good(&self, dice: &mut Dice) -> Question {
        let (target, about) = match dice.below(100) {
            0..40 => self.token(dice),
            40..55 => {
                let target = popular(dice, &self.transactions);
                let id = target.split('/').nth(4).unwrap().to_owned();
                (target.clone(), About::Transaction(id))
            }
            55..95 => self.block(dice),
            _ => {
                let number = dice.below(100_000);
                let target = format!("/ordinals/v1/brc-20/tokens/n{number}");
                (target, About::NoToken)
            }
        };
        Question {
            method: "GET",
            target,
            fields: String::new(),
            about,
        }
    }

    /// A large page, of which an answer takes a while to read.
    pub(crate) fn large(&self, dice: &mut Dice) -> Question {
        // The lowest blocks are the largest.
        let height = self.lowest + dice.below(20) as u32;
        Question {
            method: "GET",
            target: format!("/runes/v1/blocks/{height}/activity?limit=60"),
            fields: String::new(),
            about: About::Block {
                height: Some(height),
                hash: None,
                deep: true,
            },
        }
    }

    fn token(&self, dice: &mut Dice) -> (String, About) {
        let target = popular(dice, &self.tokens);
        let ticker = target.rsplit('/').next().unwrap();
        let ticker = percent_encoding::percent_decode_str(ticker);
        let ticker = ticker.decode_utf8().unwrap().to_lowercase();
        (target.clone(), About::Token(ticker))
    }

    fn block(&self, dice: &mut Dice) -> (String, About) {
        let page = match dice.below(3) {
            0 => String::new(),
            1 => format!("?limit={}", dice.between(1, 60)),
            _ => format!(
                "?limit={}&offset={}",
                dice.between(1, 60),
                dice.between(0, 200)
            ),
        };
        match dice.below(10) {
            0 | 1 => {
                let (_, hash) = dice.pick(&self.hashes);
                let about = About::Block {
                    height: None,
                    hash: Some(hash.clone()),
                    deep: true,
                };
                (format!("/runes/v1/blocks/{hash}/activity{page}"), about)
            }
            asked => {
                let height = match asked {
                    2..6 => self.lowest + dice.below((self.tip - self.lowest) as usize) as u32,
                    // About the tip, and beyond: it moves.
                    _ => self.tip - 8 + dice.below(24) as u32,
                };
                let about = About::Block {
                    height: Some(height),
                    hash: None,
                    deep: height < self.tip - DEEP,
                };
                (format!("/runes/v1/blocks/{height}/activity{page}"), about)
            }
        }
    }

    /// A question that must not get beyond the gateway.
    pub(crate) fn bad(&self, dice: &mut Dice) -> Question {
        let (method, target, fields) = match dice.below(10) {
            0 => ("GET", format!("/runes/v1/blocks/{INVALID}/activity"), ""),
            1 => (
                "GET",
                format!("/runes/v1/blocks/840001/activity?limit={INVALID}"),
                "",
            ),
            2 => ("GET", format!("/{INVALID}/{}", dice.below(1000)), ""),
            3 => (
                "GET",
                format!("/runes/v1/transactions/{INVALID}/activity"),
                "",
            ),
            4 => (
                "GET",
                format!("/ordinals/v1/brc-20/tokens/{}", INVALID.repeat(40)),
                "",
            ),
            5 => (
                "GET",
                "/runes/v1/blocks/840001/activity?limit=1&limit=2".to_owned(),
                "",
            ),
            6 => (
                "POST",
                format!("/ordinals/v1/brc-20/tokens/{INVALID}"),
                "content-length: 2\r\n\r\n{}",
            ),
            7 => (
                "GET",
                format!("/ordinals/v1/brc-20/tokens/{INVALID}"),
                "content-length: 2\r\n\r\n{}",
            ),
            8 => (
                "GET",
                format!("/ordinals/v1/brc-20/tokens/{INVALID}"),
                "content-length: 0\r\ntransfer-encoding: chunked\r\n",
            ),
            _ => (
                "GET",
                format!("/ordinals/v1/brc-20/tokens/{INVALID}"),
                "bad field: x\r\n",
            ),
        };
        Question {
            method,
            target,
            fields: fields.to_owned(),
            about: About::Invalid,
        }
    }

    /// What the gateway answers by itself.
    pub(crate) fn own(&self, dice: &mut Dice) -> Question {
        let (method, target, fields) = match dice.below(2) {
            0 => ("GET", "/openapi.json".to_owned(), ""),
            _ => (
                "OPTIONS",
                dice.pick(&self.tokens).clone(),
                "origin: https://app.example\r\naccess-control-request-method: GET\r\n",
            ),
        };
        Question {
            method,
            target,
            fields: fields.to_owned(),
            about: About::Own,
        }
    }
}

/// One of a list: mostly one of the first few.
fn popular<'t>(dice: &mut Dice, of: &'t [String]) -> &'t String {
    match dice.percent(70) {
        true => dice.pick(&of[..of.len().min(6)]),
        false => dice.pick(of),
    }
}

impl Question {
    /// The bytes that ask it.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let Self {
            method,
            target,
            fields,
            ..
        } = self;
        let end = match fields.contains("\r\n\r\n") {
            true => "",
            false => "\r\n",
        };
        format!("{method} {target} HTTP/1.1\r\nhost: gateway.example\r\n{fields}{end}").into_bytes()
    }
}
