//! The machine in single cases, and the script with real servers.

mod lost;
mod machine;
mod scripts;
