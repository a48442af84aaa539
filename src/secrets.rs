//! Reads secrets from environment variables and from files.
//!
//! Invariants: no error contains a secret. Secrets are read into buffers that are
//! zeroed when they are dropped, and that never grow, since growing leaves copies.
//! The mode of a file is checked on the open file, so that it cannot change before
//! the file is read. What is made of them (field values, the engine's URL) is not zeroed.
//!
//! The environment of the process stays in its memory and in `/proc` for as long as
//! it runs. A secret that must not stay there belongs in a file.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use zeroize::Zeroizing;

use crate::regular_file;

/// A text that is zeroed when it is dropped.
pub type Secret = Zeroizing<String>;

/// The most bytes of a file: that of client tokens has some 100 for each.
const MAX_BYTES: u64 = 8 << 20;

/// The value of an environment variable, if it is set.
///
/// # Errors
/// Where it is not UTF-8.
pub fn variable(name: &str) -> Result<Option<Secret>, String> {
    let Some(value) = std::env::var_os(name) else {
        return Ok(None);
    };
    match value.into_string() {
        Ok(text) => Ok(Some(Secret::new(text))),
        Err(secret) => {
            drop(Zeroizing::new(secret.into_encoded_bytes()));
            Err(not_text(name))
        }
    }
}

fn not_text(name: &str) -> String {
    format!("{name} is not UTF-8; visible ASCII is allowed")
}

/// Reads a file of secrets, which the setting `what` names. Without its byte order
/// mark, which some editors add.
///
/// # Errors
/// Where it cannot be read or is too large, or where others than its owner, and for reading
/// its group, have access.
pub fn file(what: &str, path: &Path) -> Result<Secret, String> {
    let file = path.display();
    let name = format!("{what} {file}");
    let mut bytes = Zeroizing::new(Vec::new());
    let read = regular_file::read_into(path, MAX_BYTES, &mut bytes);
    let found = read.map_err(|error| format!("cannot read {name}: {error}"))?;
    let mode = found.permissions().mode() & 0o7777;
    if let Some(who) = too_open(mode) {
        return Err(format!(
            "{name} has mode {mode:04o}, and so {who}; allowed is 0600, 0400, 0640 or 0440 (nothing for others, no writing for the group): chmod 600 {file}"
        ));
    }
    match std::str::from_utf8(&bytes) {
        Ok(text) => Ok(Secret::new(text.trim_start_matches('\u{feff}').to_owned())),
        Err(_where) => Err(not_text(&name)),
    }
}

/// Who has too much access to a file with this mode, if anyone.
fn too_open(mode: u32) -> Option<&'static str> {
    let can = |bits: u32| mode & bits != 0;
    if can(0o007) {
        Some("others have access to it")
    } else if can(0o020) {
        Some("its group can change it")
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::io::Write;

    use super::*;

    fn written(text: &[u8], mode: u32) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text).unwrap();
        let mode = Permissions::from_mode(mode);
        std::fs::set_permissions(file.path(), mode).unwrap();
        file
    }

    #[test]
    fn only_the_owner_and_for_reading_the_group_may_have_access() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        for mode in [0o600, 0o400, 0o640, 0o440, 0o700] {
            let held = written(b"s3cret\n", mode);
            assert_eq!(*file("a.key", held.path()).unwrap(), "s3cret\n", "{mode:o}");
        }
        for mode in [0o644, 0o604, 0o602, 0o601, 0o660, 0o620, 0o666, 0o4644] {
            let held = written(b"s3cret\n", mode);
            std::os::unix::fs::symlink(held.path(), &link).unwrap();
            // The mode of a link is that of its target.
            for path in [held.path(), &link] {
                let error = file("a.key", path).unwrap_err();
                let path = path.display();
                let expected = format!("a.key {path} has mode {mode:04o}, and so ");
                assert!(error.starts_with(&expected), "{error}");
                assert!(error.contains("allowed is 0600, 0400, 0640 or 0440"));
                assert!(error.ends_with(&format!(": chmod 600 {path}")), "{error}");
                assert!(!error.contains("s3cret"));
            }
            std::fs::remove_file(&link).unwrap();
        }
    }

    #[test]
    fn an_error_names_the_setting_and_the_file() {
        let said = |path: &Path| file("a.key", path).unwrap_err();
        let text = said(Path::new("/dev/null"));
        assert!(
            text.starts_with("cannot read a.key /dev/null: it is a device;"),
            "{text}"
        );
        let text = said(written(b"n\xff", 0o600).path());
        assert!(text.ends_with("is not UTF-8; visible ASCII is allowed"));
        let large = written(&vec![b'a'; MAX_BYTES as usize + 1], 0o600);
        let text = said(large.path());
        assert!(text.contains("more than 8MiB"), "{text}");
    }

    #[test]
    fn a_byte_order_mark_is_removed() {
        let held = written("\u{feff}s3cret".as_bytes(), 0o400);
        assert_eq!(*file("a.key", held.path()).unwrap(), "s3cret");
    }
}
