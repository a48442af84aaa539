//! The loss of one region of three, and its return with empty caches: how long until
//! clients and the upstream see no difference to a play without the loss.

use crate::layout::{Layout, REGIONS, Sizes, Variant};
use crate::play::{Bin, Loss, Play};
use crate::settings::Settings;
use crate::timeline::Timeline;
use crate::workload::Key;

/// Seconds of a bin, and the bins of a minute, whose means are compared.
const BIN: f64 = 10.0;
const MINUTE: usize = 6;
/// As before: no more above the play without the loss than this part of its worst
/// minute (upstream requests) or of its mean (misses), for so many bins.
const NEAR: f64 = 0.1;
const LASTING: usize = 30;

/// What a region's return looks like.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Recovery {
    /// Upstream requests a second before, and in the worst minute after the loss.
    pub(crate) before: f64,
    pub(crate) after_loss: f64,
    /// In the worst minute of the same time without the loss: blocks come.
    pub(crate) usual_after_loss: f64,
    /// The same after the return.
    pub(crate) after_return: f64,
    pub(crate) usual_after_return: f64,
    /// Hit ratio of the region's replicas before, and in the worst ten seconds after the return.
    pub(crate) hits_before: f64,
    pub(crate) hits_worst: f64,
    /// Seconds from the return, or the loss of the engine, until the upstream sees as many
    /// requests as without the loss, and until as many are hits.
    pub(crate) upstream_after: f64,
    pub(crate) hits_after: f64,
    /// Requests that it costs the upstream from then on.
    pub(crate) extra: f64,
}

/// Plays the loss and the return.
pub(crate) fn recovery(
    variant: Variant,
    replicas: usize,
    load: f64,
    (keys, sizes): (&[Key], Sizes),
    timeline: &Timeline,
    settings: &Settings,
    loss: Loss,
) -> Recovery {
    let layout = Layout::new(variant, replicas, load, keys, sizes);
    let play = |loss| {
        let play = Play {
            layout: &layout,
            timeline,
            settings,
            load,
            warm: 0.0,
            loss,
            bin: BIN,
            seed: 1,
        };
        play.run(keys).bins
    };
    // The same, but that nothing is ever lost: no region has so many seconds.
    let never = Loss {
        from: timeline.end * 2.0,
        until: timeline.end * 2.0,
        ..loss
    };
    let (usual, lost) = (play(Some(never)), play(Some(loss)));
    let bin_of = |at: f64| (at / BIN) as usize;
    let (from, back) = (bin_of(loss.from), bin_of(loss.until));
    let mean = |bins: &[Bin], of: fn(&Bin) -> f64| {
        bins.iter().map(of).sum::<f64>() / (bins.len() as f64 * BIN)
    };
    let upstream: fn(&Bin) -> f64 = |bin| bin.upstream;
    let misses: fn(&Bin) -> f64 = |bin| bin.misses;
    let most = |bins: &[Bin]| {
        let minutes = bins.windows(MINUTE).map(|minute| mean(minute, upstream));
        minutes.fold(0.0, f64::max)
    };
    let changed = if loss.with_engine { from } else { back };
    let near = |of: fn(&Bin) -> f64, of_what: f64, changed: usize| {
        let minutes = usual.windows(MINUTE).zip(lost.windows(MINUTE));
        let is_near: Vec<_> = minutes
            .map(|(usual, lost)| mean(lost, of) <= mean(usual, of) + NEAR * of_what)
            .skip(changed)
            .collect();
        let mut lasting = is_near.windows(LASTING);
        let found = lasting.position(|near| near.iter().all(|near| *near));
        found.map_or(f64::INFINITY, |bins| bins as f64 * BIN)
    };
    // Of the region alone.
    let hits = |misses: f64| 1.0 - misses / (load / REGIONS as f64);
    let before = &usual[from - 10 * MINUTE..from];
    let worst = lost[back..].iter().map(misses).fold(0.0, f64::max) / BIN;
    let all = |bins: &[Bin]| bins[changed..].iter().map(upstream).sum::<f64>();
    Recovery {
        before: mean(before, upstream),
        after_loss: most(&lost[from..back]),
        usual_after_loss: most(&usual[from..back]),
        after_return: most(&lost[back..]),
        usual_after_return: most(&usual[back..]),
        hits_before: hits(mean(before, misses)),
        hits_worst: hits(worst),
        upstream_after: near(upstream, most(&usual[from..]), changed),
        hits_after: near(misses, mean(before, misses), back),
        extra: all(&lost) - all(&usual),
    }
}
