//! What the API says of the chain, and as which bytes.

use super::{
    BASE, BlockId, Figures, Item, REFUSED, Subject, TICKERS, TOKENS, Target, Thing, Version, World,
    page,
};

impl World {
    /// What a target is about at a version.
    pub(crate) fn thing(&self, target: &Target, version: &Version) -> Thing {
        let has = |id: &&BlockId| !self.blocks[**id].items.is_empty();
        match &target.subject {
            Subject::Status(_) => Thing::NotFound,
            Subject::Height(height) => {
                let at = height.checked_sub(BASE).map(|at| at as usize);
                let block = at.and_then(|at| version.data.get(at)).filter(has);
                block.map_or(Thing::Nothing, |id| Thing::List(*id, None))
            }
            Subject::Rest(_, height) => {
                let at = height.checked_sub(BASE).map(|at| at as usize);
                let block = at.and_then(|at| version.data.get(at));
                block.map_or(Thing::NotFound, |id| Thing::Rest(*id, version.data.len()))
            }
            Subject::Hash(hash) if REFUSED.contains(&&**hash) => Thing::Refused,
            Subject::Hash(hash) => {
                let mut blocks = version.data.iter();
                let block = blocks
                    .find(|id| self.blocks[**id].hash == *hash)
                    .filter(has);
                block.map_or(Thing::Nothing, |id| Thing::List(*id, None))
            }
            Subject::Tx(tx) => {
                let tx = self.txs.iter().position(|own| own.id == *tx);
                let found = tx.and_then(|tx| {
                    let mut blocks = version.data.iter().rev();
                    let holds = |id: &&BlockId| self.blocks[**id].txs.iter().any(|t| t.0 == tx);
                    Some(Thing::List(*blocks.find(holds)?, Some(tx)))
                });
                found.unwrap_or(Thing::Nothing)
            }
            Subject::Token(ticker) => {
                let token = TICKERS.iter().position(|own| own == ticker);
                let figures = token.and_then(|token| Some((token, (*version.tokens.get(token)?)?)));
                figures.map_or(Thing::NotFound, |(token, figures)| {
                    Thing::Token(token, figures)
                })
            }
        }
    }

    /// Status and body of what a thing looks like on the page that a target
    /// asks for.
    pub(crate) fn render(&self, thing: Thing, target: &Target) -> (u16, String) {
        let (limit, offset) = (target.limit, target.offset);
        match thing {
            Thing::NotFound => (404, r#"{"error":"Not found"}"#.to_owned()),
            Thing::Refused => {
                let body = r#"{"statusCode":400,"error":"Bad Request","message":"params/block must match a schema in anyOf"}"#;
                (400, body.to_owned())
            }
            Thing::Token(
                token,
                Figures {
                    deploy,
                    minted,
                    count,
                },
            ) => {
                let block = &self.blocks[deploy];
                let (height, time) = (block.height, block.timestamp);
                let ticker = TICKERS[token];
                let tx = &block.hash[8..];
                let body = format!(
                    r#"{{"token":{{"id":"00000000{tx}i0","number":{token},"block_height":{height},"tx_id":"00000000{tx}","address":"a","ticker":"{ticker}","max_supply":"21000000","mint_limit":null,"decimals":18,"deploy_timestamp":{time}000,"minted_supply":"{minted}","tx_count":{count},"self_mint":false}},"supply":{{"max_supply":"21000000","minted_supply":"{minted}","holders":{count}}}}}"#
                );
                (200, body)
            }
            Thing::Rest(block, count) => {
                let hash = &self.blocks[block].hash;
                (200, format!("<p>{hash} of {count}"))
            }
            Thing::Nothing => (200, page(limit, offset, 0, "")),
            Thing::List(block, tx) => {
                let block = &self.blocks[block];
                let (from, to) = match tx {
                    None => (0, block.items.len()),
                    Some(tx) => {
                        let run = block.txs.iter().find(|run| run.0 == tx).unwrap();
                        (run.1, run.2)
                    }
                };
                let of_kind = |item: &&Item| {
                    let wanted = target.operation.as_deref();
                    wanted.is_none_or(|wanted| wanted == item.operation)
                };
                let items: Vec<_> = block.items[from..to].iter().filter(of_kind).collect();
                let shown = items.iter().skip(offset).take(limit);
                let shown: Vec<_> = shown.map(|item| &*item.text).collect();
                let total = if shown.is_empty() { 0 } else { items.len() };
                (200, page(limit, offset, total, &shown.join(",")))
            }
        }
    }

    /// The id of some transaction that was ever mined.
    pub(crate) fn tx_id(&self, tx: usize) -> &str {
        &self.txs[tx].id
    }

    pub(super) fn figures(&self, data: &[BlockId]) -> [Option<Figures>; TOKENS] {
        let mut figures = [None; TOKENS];
        for id in data {
            for (slot, (deploys, mints)) in figures.iter_mut().zip(self.blocks[*id].tokens) {
                match slot {
                    None if deploys => {
                        *slot = Some(Figures {
                            deploy: *id,
                            minted: 0,
                            count: 1,
                        });
                    }
                    Some(figures) if mints > 0 => {
                        figures.minted += mints;
                        figures.count += 1;
                    }
                    None | Some(_) => {}
                }
            }
        }
        figures
    }
}
