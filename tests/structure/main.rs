//! The structure of the source: which module may use which, and how long files
//! and functions may be.
//!
//! `src/lib.rs` lists the modules in layers. A module may use those above it in
//! the list, or to its left. Its unit tests may use any.

mod sizes;
mod source;

use std::collections::BTreeMap;
use std::fs;

use source::{Source, paths, places, product, root, sources};

/// The modules in the order of the layers.
fn layers() -> Vec<String> {
    let lib = fs::read_to_string(root().join("src/lib.rs")).unwrap();
    let mut modules = Vec::new();
    for row in ["basics", "rules", "state", "request path", "I/O"] {
        let line = lib
            .lines()
            .find(|line| line.starts_with(&format!("//! | {row} |")));
        let line = line.unwrap_or_else(|| panic!("src/lib.rs has no layer {row}"));
        for part in line.split("[`").skip(1) {
            let (name, rest) = part.split_once("`]").unwrap();
            match rest
                .strip_prefix("`::{")
                .and_then(|rest| rest.split_once('}'))
            {
                None => modules.push(name.to_owned()),
                Some((inner, _)) => {
                    modules.extend(inner.split(", ").map(|inner| format!("{name}::{inner}")));
                }
            }
        }
    }
    assert!(modules.len() > 20, "{modules:?}");
    modules
}

/// The module that a path leads into: the longest one that it begins with.
fn module_of<'m>(modules: &'m [String], path: &str) -> Option<(usize, &'m str)> {
    let leads = |module: &str| path == module || path.starts_with(&format!("{module}::"));
    let all = modules
        .iter()
        .enumerate()
        .filter(|(_, module)| leads(module));
    let longest = all.max_by_key(|(_, module)| module.len());
    longest.map(|(at, module)| (at, &**module))
}

#[test]
fn modules_use_only_modules_above_or_left_of_them() {
    let modules = layers();
    let mut uses = BTreeMap::new();
    let mut faults = Vec::new();
    for source in product() {
        let is_binary = |module: &str| module == "main" || module.split("::").next() == Some("cli");
        if source.module.is_empty() || is_binary(&source.module) {
            // lib.rs declares the modules; the binary is below all of them.
            continue;
        }
        if source.module.split("::").any(|part| part == "proof") {
            // A proof is a unit test.
            continue;
        }
        let Some((from, here)) = module_of(&modules, &source.module) else {
            faults.push(format!("{} is in no module of the list", source.name));
            continue;
        };
        for path in paths(&source) {
            let Some((to, there)) = module_of(&modules, &path) else {
                faults.push(format!(
                    "{} names {path}, which is in no module of the list",
                    source.name
                ));
                continue;
            };
            // A module may use its own submodules, wherever the list has them.
            let inner = there.starts_with(&format!("{here}::"));
            if to > from && !inner {
                faults.push(format!("{} ({here}) names {path} ({there})", source.name));
            }
            *uses.entry((here.to_owned(), there.to_owned())).or_insert(0) += 1;
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
    // The reading works: these uses are there, and are found.
    for (from, to) in [
        ("gateway", "cache"),
        ("gateway", "cache::key"),
        ("listener", "wire"),
        ("config", "units"),
        ("config", "upstream"),
        ("serve", "config"),
    ] {
        let used = (from.to_owned(), to.to_owned());
        assert!(uses.contains_key(&used), "{from} -> {to} in {uses:#?}");
    }
}

#[test]
fn every_module_is_in_a_layer_and_every_entry_is_a_module() {
    let modules = layers();
    let product = product();
    let lib = product
        .iter()
        .find(|source| source.module.is_empty())
        .unwrap();
    let declared: Vec<_> = lib
        .code
        .lines()
        .filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'))
        .collect();
    for name in &declared {
        assert!(
            modules.iter().any(|module| module == name),
            "{name} is in no layer"
        );
    }
    for module in &modules {
        assert!(
            product.iter().any(|source| source.module == *module),
            "src/lib.rs lists {module}, which does not exist"
        );
    }
    let mut once = modules.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), modules.len(), "a module is listed once");
}

#[test]
fn the_sandbox_uses_nothing_of_the_rest() {
    for source in product() {
        if source.module != "sandbox" && !source.module.starts_with("sandbox::") {
            continue;
        }
        for path in paths(&source) {
            assert!(path.starts_with("sandbox"), "{} names {path}", source.name);
        }
    }
}

#[test]
fn libraries_are_used_only_where_they_belong() {
    #[rustfmt::skip]
    let rows = [
        ("moka", &["cache::store", "cache::store::attach"][..]),
        ("crc32fast", &["state::value"]),
        ("rusqlite", &["state::answers", "state::answers::table", "state::database", "state::spent"]),
        ("opentelemetry", &["trace", "telemetry::otlp"]),
        ("opentelemetry_sdk", &["telemetry::otlp"]),
        ("postcard", &["state::value", "shared::responses", "fill::names", "probe"]),
        ("crossbeam_epoch", &["cache::store"]),
        ("governor", &["limit", "clock"]),
        ("anyhow", &["cli", "cli::admin", "cli::check", "cli::environment", "cli::man", "cli::sandbox", "cli::serve"]),
        ("clap", &["cli", "cli::flags", "cli::man"]),
        ("matchit", &["route::request", "route::table"]),
        ("redis", &["shared::engine", "shared::engine::url"]),
        ("tracing_appender", &["log_writer"]),
        ("tracing_subscriber", &["telemetry"]),
        ("zstd", &["compress", "state::value"]),
        ("brotli", &["compress"]),
        ("flate2", &["compress"]),
        ("listenfd", &["supervisor"]),
        ("sd_notify", &["supervisor"]),
        ("zeroize", &["secrets"]),
    ];
    for (library, allowed) in rows {
        let is_path =
            |line: &str, at: usize| line[at + library.len()..].starts_with(['!', ':', ';']);
        let named = |source: &Source| {
            let mut lines = source.code.lines();
            lines.any(|line| places(line, library).any(|at| is_path(line, at)))
        };
        let by: Vec<_> = product().into_iter().filter(named).collect();
        assert!(!by.is_empty(), "{library} is used");
        for source in by {
            assert!(
                allowed.contains(&&*source.module),
                "{} names {library}",
                source.name
            );
        }
    }
}

#[test]
fn every_file_begins_with_documentation() {
    for source in ["src", "tests", "benches"]
        .iter()
        .flat_map(|directory| sources(directory))
    {
        assert!(
            source.whole.starts_with("//! "),
            "{} has no //!",
            source.name
        );
    }
}
