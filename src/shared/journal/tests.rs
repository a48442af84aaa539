//! The machine in single cases, and the script with real servers.

mod machine;
mod scripts;

#[allow(dead_code, reason = "tests/shared uses the rest of it")]
#[path = "../../../tests/shared/servers.rs"]
mod servers;
