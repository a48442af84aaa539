//! A walk through a block of 40,000 items, page by page, from an upstream for
//! which each page costs the whole block.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Result, ensure};
use ordgate::sandbox::{Sandbox, Settings};
use tokio::time::Instant;

use crate::ask::{Ask, Page};
use crate::ordgate_config;
use crate::play::Caller;
use crate::serve;
use crate::subject::Subject;

/// Items in the block, at least.
const ITEMS: usize = 40_000;
/// What a page of that block takes the reference upstream: 667 of them were
/// seen to take 70 s.
const PAGE_COST: Duration = Duration::from_millis(105);
/// The clients' page.
const PAGE: usize = 60;
/// The upstream's page, as it is and as a self-hosted one allows it.
const UPSTREAM_PAGES: [u32; 2] = [60, 10_000];
/// The lowest of the largest blocks, far below the tip.
const HEIGHT: u32 = 840_023;

struct Walked {
    took: Duration,
    pages: usize,
    upstream: u64,
}

/// Walks it directly and through ordgate, and says what it took.
pub(crate) async fn walk(seed: u64) -> Result<Vec<String>> {
    let settings = settings(seed);
    let target = first_page().to_string();
    let model = Sandbox::new(settings.clone());
    let items = page_of(&model, &target).total;
    eprintln!("the block has {items} items");
    let mut lines = vec![format!(
        "A block of {items} items, pages of {PAGE}, {} ms of the upstream for each page:",
        PAGE_COST.as_millis()
    )];
    lines.push(format!(
        "| {:<44} | {:>8} | {:>7} | {:>8} |",
        "way", "seconds", "pages", "upstream"
    ));
    lines.push("|---|--:|--:|--:|".to_owned());
    let mut tell = |way: &str, walked: &Walked| {
        let line = format!(
            "| {way:<44} | {:>8.2} | {:>7} | {:>8} |",
            walked.took.as_secs_f64(),
            walked.pages,
            walked.upstream
        );
        eprintln!("{line}");
        lines.push(line);
    };
    let sandbox = Sandbox::new(settings.clone());
    let upstream = serve(&sandbox).await?;
    tell(
        "directly",
        &through(upstream.address, &sandbox, &model).await?,
    );
    for upstream_page in UPSTREAM_PAGES {
        let sandbox = Sandbox::new(settings.clone());
        let upstream = serve(&sandbox).await?;
        let page = Some(i64::from(upstream_page));
        let config = ordgate_config::text(upstream.address, None, page)?;
        let subject = Subject::ordgate(&config)?;
        for turn in ["", ", again"] {
            let way = format!("through ordgate, upstream_page {upstream_page}{turn}");
            tell(&way, &through(subject.address, &sandbox, &model).await?);
        }
    }
    Ok(lines)
}

/// A sandbox whose largest blocks have so many items, and charge for them.
fn settings(seed: u64) -> Settings {
    let with = |largest_block| Settings {
        seed,
        blocks: 100,
        largest_block,
        max_limit: UPSTREAM_PAGES[1],
        ..Settings::default()
    };
    let items = |largest_block| {
        let sandbox = Sandbox::new(with(largest_block));
        page_of(&sandbox, &first_page().to_string()).total
    };
    // The fewest transactions that have as many items.
    let (mut least, mut most) = (1, u16::MAX);
    while least < most {
        let middle = least + (most - least) / 2;
        if items(middle) < ITEMS {
            least = middle + 1;
        } else {
            most = middle;
        }
    }
    let items = u32::try_from(items(least)).unwrap_or(u32::MAX);
    Settings {
        item_cost: PAGE_COST / items.max(1),
        ..with(least)
    }
}

fn first_page() -> Ask {
    page_at(0)
}

fn page_at(offset: usize) -> Ask {
    Ask::Block {
        block: HEIGHT.to_string(),
        limit: PAGE,
        offset,
    }
}

fn page_of(sandbox: &Sandbox, target: &str) -> Page {
    Page::read(&sandbox.answer(target).body)
}

/// Walks from the first page to the last, one after the other.
async fn through(address: SocketAddr, sandbox: &Sandbox, model: &Sandbox) -> Result<Walked> {
    let caller = Caller::new(address);
    let before = sandbox.counts();
    let mut walked = Walked {
        took: Duration::ZERO,
        pages: 0,
        upstream: 0,
    };
    let mut total = usize::MAX;
    while walked.pages * PAGE < total {
        let target = page_at(walked.pages * PAGE).to_string();
        let start = Instant::now();
        let (status, body) = caller.get(&target).await?;
        walked.took += start.elapsed();
        walked.pages += 1;
        let truth = model.answer(&target);
        ensure!(
            status == 200 && body == truth.body,
            "{target}: {status}, and not what the upstream says"
        );
        total = Page::read(&body).total;
    }
    let after = sandbox.counts();
    walked.upstream = (after.total - after.status) - (before.total - before.status);
    Ok(walked)
}
