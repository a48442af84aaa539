//! Clients that do not read their answers.
