//! What this program was built from. The build script (`build.rs` of the repository)
//! finds it out.

/// The version of the crate.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// The first twelve digits of the commit, and `+` if the sources differed from it;
/// "unknown" for unoptimized builds, and where there is neither a repository nor a variable.
pub const COMMIT: &str = env!("ORDGATE_COMMIT");
/// The date of the commit in UTC, such as 2026-11-23, or "unknown".
pub const DATE: &str = env!("ORDGATE_DATE");
/// The version of the compiler, or "unknown".
pub const RUSTC: &str = env!("ORDGATE_RUSTC");
/// Version, and commit and date if they are known, as `ordgate --version` prints them.
pub const LONG_VERSION: &str = env!("ORDGATE_VERSION");
