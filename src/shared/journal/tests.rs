//! The machine in single cases, and the script with real servers.

mod machine;
mod scripts;
