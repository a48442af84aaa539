//! A fleet of ordgates at the scale of the internet, by simulation: upstream requests
//! against a perfect cache, the engine's load, purges under loss, the use of the
//! budget, and the loss of a region: `cargo bench --bench fleet`.
//!
//! `docs/scale.md` has the figures and what follows from them. `--quick` plays less,
//! `--engine` measures the costs of the engine that `load` has as constants. The model
//! is checked by the test target `fleet` (`tests.rs`).

#![expect(clippy::print_stdout, reason = "a bench reports on standard output")]

use anyhow::Result;
use clap::Parser;

use crate::layout::Sizes;
use crate::report::Report;
use crate::settings::Settings;
use crate::timeline::Timeline;

mod budget;
mod engine;
mod layout;
mod load;
mod oracle;
mod play;
mod purge;
mod region;
mod report;
mod settings;
mod timeline;
mod workload;

/// Simulates a fleet of ordgates.
#[derive(Parser)]
struct Flags {
    /// Two hours of fleets of up to 64 replicas, of which one is counted.
    #[arg(long)]
    quick: bool,
    /// Measure what the engine's work costs instead, with a real redis-server.
    #[arg(long)]
    engine: bool,
    /// What everything is made from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Memory of a replica for stored responses, in GiB (`cache.max_bytes`).
    #[arg(long, default_value_t = 2.0)]
    replica_gib: f64,
    /// Memory of the engine, in GiB.
    #[arg(long, default_value_t = 64.0)]
    engine_gib: f64,
    /// What a shield or a budget holder stores on disk, in GiB (`state.max_bytes`).
    #[arg(long, default_value_t = 64.0)]
    disk_gib: f64,
    /// What cargo passes to every bench.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let flags = Flags::parse();
    if flags.engine {
        println!("{}", engine::measure()?.join("\n"));
        return Ok(());
    }
    let hours = if flags.quick { 2.0 } else { 3.0 };
    let timeline = Timeline::new(flags.seed, hours * 3_600.0);
    let gib = |count: f64| count * f64::from(1 << 30);
    let report = Report {
        keys: workload::keys(&timeline),
        timeline,
        settings: Settings::shipped()?,
        sizes: Sizes {
            replica: gib(flags.replica_gib),
            engine: gib(flags.engine_gib),
            disk: gib(flags.disk_gib),
        },
        most: if flags.quick { 64 } else { 1_000 },
        seed: flags.seed,
    };
    for table in [
        Report::sharing,
        Report::same_load,
        Report::classes,
        Report::engine,
        Report::cdn,
        Report::purges,
        Report::budgets,
        Report::region,
    ] {
        println!("{}\n", table(&report).join("\n"));
    }
    Ok(())
}
