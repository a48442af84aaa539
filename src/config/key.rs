//! What a key of proxy.toml is: its name, kind, default and documentation.
//!
//! Each table of the file is declared once, with `keys!`: a struct
//! with a field for each key. The reader, the unknown-key check, `ordgate check
//! --all`, the shipped proxy.toml and `ordgate schema` are all made from that
//! declaration. A key that is not declared cannot be read: the struct has no such
//! field. A key that is declared and not used is a compiler warning.

use std::ops::Deref;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::problem::{FileSpan, Path};

/// The value of a key, and where the file sets it.
#[derive(Clone, Debug)]
pub(super) struct Setting<T> {
    pub(super) value: T,
    /// `None` where the file does not set it: the value is the default then.
    pub(super) at: Option<FileSpan>,
    /// Whether the file sets it to something that is not allowed. The problem has
    /// been reported, and the value is the default.
    pub(super) is_wrong: bool,
}

impl<T> Setting<T> {
    /// A key that the file does not set.
    pub(super) const fn default(value: T) -> Self {
        Self {
            value,
            at: None,
            is_wrong: false,
        }
    }

    /// Whether the file sets it, to an allowed value or not.
    pub(super) const fn is_set(&self) -> bool {
        self.at.is_some()
    }

    /// Where to report a problem that concerns several keys.
    pub(super) fn at_or<'s>(&'s self, otherwise: &'s FileSpan) -> &'s FileSpan {
        self.at.as_ref().unwrap_or(otherwise)
    }
}

impl<T> Deref for Setting<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// What values a key may have.
pub(super) trait Kind {
    /// The value as ordgate uses it.
    type Value: Clone;

    /// What is allowed, in words; it follows "allowed is".
    fn allowed(&self) -> String;

    /// Reads a value. Reports what is not allowed, and answers `None` then.
    fn read(&self, path: &Path<'_>, value: &Spanned<DeValue<'_>>) -> Option<Self::Value>;

    /// The value as it is written in the file, as TOML; `None` for a key that is
    /// not there, and for tables.
    fn print(&self, _value: &Self::Value) -> Option<String> {
        None
    }

    /// What is allowed, as JSON Schema.
    fn schema(&self) -> serde_json::Value;

    /// Takes over the value of another table where this one does not set it.
    fn inherit(&self, own: &mut Setting<Self::Value>, from: &Setting<Self::Value>) {
        if !own.is_set() {
            own.value.clone_from(&from.value);
            own.is_wrong = from.is_wrong;
        }
    }

    /// The keys of the tables that the value is or has.
    fn inner(&self) -> Inner {
        Inner::Value
    }
}

/// What a key leads to.
#[derive(Clone, Copy)]
pub(super) enum Inner {
    /// A value.
    Value,
    /// A table: `[key]`.
    Table(fn() -> &'static DeclaredTable),
    /// A table that may be left out, which has another meaning than an empty one.
    Optional(fn() -> &'static DeclaredTable),
    /// A table of tables whose names the user chooses: `[key.NAME]`.
    Named(fn() -> &'static DeclaredTable),
    /// A list of tables: `[[key]]`.
    List(fn() -> &'static DeclaredTable),
}

/// A declared table: what it is for, and its keys.
pub(super) struct DeclaredTable {
    /// Paragraphs, without line breaks.
    pub(super) about: Vec<String>,
    pub(super) keys: Vec<DeclaredKey>,
}

impl DeclaredTable {
    /// The declaration of a key, by its name or its old one.
    pub(super) fn key(&self, name: &str) -> Option<&DeclaredKey> {
        let mut keys = self.keys.iter();
        keys.find(|key| key.name == name || key.old_name == Some(name))
    }

    /// The key that a misspelt name probably stands for.
    fn nearest(&self, name: &str) -> Option<&'static str> {
        let names = self
            .keys
            .iter()
            .flat_map(|key| [Some(key.name), key.old_name]);
        let known = self.key(nearest(name, names.flatten())?)?;
        Some(known.name)
    }
}

/// A declared key.
pub(super) struct DeclaredKey {
    pub(super) name: &'static str,
    /// The name that it had in an earlier release, which is still read.
    pub(super) old_name: Option<&'static str>,
    /// Paragraphs, without line breaks.
    pub(super) about: Vec<String>,
    /// The default as it is written in the file.
    pub(super) default: Option<String>,
    /// How it may be set, for a key without a default.
    pub(super) example: Option<&'static str>,
    /// Whether the shipped proxy.toml shows it.
    pub(super) is_shown: bool,
    /// Whether it shows the example as a value, not as a comment.
    pub(super) is_shown_set: bool,
    /// Whether a table must have it.
    pub(super) is_required: bool,
    /// The key beside it that it depends on, and the values of that key with
    /// which it is allowed.
    pub(super) only_with: Option<(&'static str, &'static [&'static str])>,
    pub(super) inner: Inner,
    /// What is allowed, in words.
    pub(super) allowed: String,
    pub(super) schema: serde_json::Value,
}

impl DeclaredKey {
    pub(super) fn new<K: Kind>(
        name: &'static str,
        about: &str,
        kind: &K,
        default: &K::Value,
    ) -> Self {
        Self {
            name,
            old_name: None,
            about: paragraphs(about),
            default: kind.print(default),
            example: None,
            is_shown: false,
            is_shown_set: false,
            is_required: false,
            only_with: None,
            inner: kind.inner(),
            allowed: kind.allowed(),
            schema: kind.schema(),
        }
    }

    /// The shipped proxy.toml shows it.
    pub(super) fn shown(mut self) -> Self {
        self.is_shown = true;
        self
    }

    /// The shipped proxy.toml sets it to the example, which is the value that has the
    /// same effect as leaving it out.
    pub(super) fn shown_set(mut self) -> Self {
        self.is_shown = true;
        self.is_shown_set = true;
        self
    }

    /// It had this name in an earlier release. A file that uses it gets a warning.
    pub(super) fn renamed_from(mut self, name: &'static str) -> Self {
        self.old_name = Some(name);
        self
    }

    /// A table must have it.
    pub(super) fn required(mut self) -> Self {
        self.is_required = true;
        self.default = None;
        self
    }

    /// How a key without a default may be set.
    pub(super) fn example(mut self, example: &'static str) -> Self {
        self.example = Some(example);
        self
    }

    /// It is allowed only with some values of another key of its table.
    pub(super) fn only_with(
        mut self,
        other: &'static str,
        values: &'static [&'static str],
    ) -> Self {
        self.only_with = Some((other, values));
        self
    }
}

/// The paragraphs of a doc comment.
pub(super) fn paragraphs(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let paragraphs = lines.split(|line| line.is_empty());
    let joined = paragraphs.map(|lines| lines.join(" "));
    joined.filter(|paragraph| !paragraph.is_empty()).collect()
}

/// A table of proxy.toml; `keys!` implements it.
pub(super) trait KeyTable: Clone + 'static {
    /// Its declaration.
    fn table() -> &'static DeclaredTable;
    /// Every key at its default.
    fn defaults() -> Self;
    /// Reads a table of the file.
    fn read(path: &Path<'_>, at: &FileSpan, table: &DeTable<'_>) -> Self;
    /// Takes over what this table does not set.
    fn inherit(&mut self, from: &Self);
}

/// Reads one key of a table, by its name or its old one.
pub(super) fn read<K: Kind>(
    kind: &K,
    default: K::Value,
    path: &Path<'_>,
    table: &DeTable<'_>,
    key: Option<&DeclaredKey>,
) -> Setting<K::Value> {
    let names = key.map(|key| [Some(key.name), key.old_name]);
    let mut names = names.into_iter().flatten().flatten();
    let set = names.find_map(|name| Some((name, table.get(name)?)));
    let Some((name, value)) = set else {
        return Setting::default(default);
    };
    path.key(key.map_or(name, |key| key.name))
        .is_set(&value.span());
    let read = kind.read(&path.key(name), value);
    Setting {
        is_wrong: read.is_none(),
        value: read.unwrap_or(default),
        at: Some(value.span()),
    }
}

/// Reports the keys that a table must have and has not, and those that it may not
/// have, at all or with its other keys. Warns of old names.
pub(super) fn check_names(
    path: &Path<'_>,
    at: &FileSpan,
    table: &DeTable<'_>,
    declared: &DeclaredTable,
) {
    let unknown = table
        .keys()
        .filter(|name| declared.key(name.get_ref()).is_none());
    let meant: Vec<_> = unknown
        .filter_map(|name| declared.nearest(name.get_ref()))
        .collect();
    for key in declared.keys.iter().filter(|key| key.is_required) {
        // A misspelt one is reported as that.
        if !table.contains_key(key.name) && !meant.contains(&key.name) {
            path.key(key.name).problem(at, "is missing");
        }
    }
    for (name, value) in table {
        let Some(key) = declared.key(name.get_ref()) else {
            let names: Vec<_> = declared.keys.iter().map(|key| key.name).collect();
            let meant = declared.nearest(name.get_ref());
            report_unknown(path, &name.span(), name.get_ref(), meant, &names);
            continue;
        };
        if key.name != name.get_ref() {
            check_old_name(path, name, key.name, table);
        }
        check_dependence(path, key, &value.span(), table, declared);
    }
}

/// Warns of a key's old name, or reports it if the table has the new name, too.
fn check_old_name(path: &Path<'_>, old: &Spanned<DeString<'_>>, new: &str, table: &DeTable<'_>) {
    let (at, path, new_path) = (old.span(), path.key(old.get_ref()), path.key(new));
    let new_name = new_path.name();
    match table.get_key_value(new) {
        Some((new, _)) => {
            let (line, column) = path.line_and_column(&new.span());
            let message = format!(
                "is the old name of {new_name}, which is set at {line}:{column}; remove one of them"
            );
            path.problem(&at, message);
        }
        None => path.warn(
            &at,
            format!("is now named {new_name}; the next release does not accept the old name"),
        ),
    }
}

/// Reports a key that is not allowed with the value of the key that it depends on.
fn check_dependence(
    path: &Path<'_>,
    key: &DeclaredKey,
    at: &FileSpan,
    table: &DeTable<'_>,
    declared: &DeclaredTable,
) {
    let Some((other, values)) = key.only_with else {
        return;
    };
    let declared = declared.key(other);
    let is_allowed = match table.get(other).map(|value| value.get_ref()) {
        Some(DeValue::Boolean(set)) => values.contains(&if *set { "true" } else { "false" }),
        Some(DeValue::String(text)) => {
            let names = declared.and_then(|other| other.schema["enum"].as_array());
            let is_known = names.is_none_or(|names| names.iter().any(|name| *name == **text));
            // An unknown name has been reported.
            !is_known || values.contains(&&**text)
        }
        // A value of another type has been reported.
        Some(_) => true,
        None => {
            let default = declared.and_then(|other| other.default.as_deref());
            default.is_none_or(|default| values.contains(&default.trim_matches('"')))
        }
    };
    if !is_allowed {
        let quoted = values.iter().map(|value| match *value {
            "true" | "false" => (*value).to_owned(),
            value => format!("\"{value}\""),
        });
        let quoted: Vec<_> = quoted.collect();
        let path = path.key(key.name);
        path.problem(at, format!("goes with {other} = {}", quoted.join(" or ")));
    }
}

/// Reports an unknown key, with the known one that is probably meant.
pub(super) fn report_unknown(
    path: &Path<'_>,
    at: &FileSpan,
    name: &str,
    meant: Option<&str>,
    known: &[&str],
) {
    let full = path.key(name);
    let allowed = match meant {
        Some(known) => format!("did you mean {}?", path.key(known).name()),
        None => format!("allowed are {}.", known.join(", ")),
    };
    let is_secret = ["api_key", "token", "secret", "password"]
        .iter()
        .any(|part| name.to_ascii_lowercase().contains(part));
    let hint = match is_secret {
        true => {
            " A secret must not be in this file: set ORDGATE_API_KEYS or ORDGATE_ADMIN_TOKEN, or name a file with api_keys_file or token_file"
        }
        false => "",
    };
    let allowed = match is_secret {
        true => &*allowed,
        false => allowed.trim_end_matches('.'),
    };
    path.problem_whole(at, format!("unknown key {}; {allowed}{hint}", full.name()));
}

/// The name that a misspelt one probably stands for.
pub fn nearest<'n>(text: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    /// How alike two names are at least, from 0 to 1.
    const ALIKE: f64 = 0.8;
    let text = text.to_ascii_lowercase().replace('-', "_");
    let rated = names.map(|name| (strsim::jaro_winkler(&text, &name.replace('-', "_")), name));
    let best = rated.filter(|(alike, _)| *alike >= ALIKE);
    best.max_by(|(one, _), (other, _)| one.total_cmp(other))
        .map(|(_, name)| name)
}

/// The beginning of what is allowed in place of a value: "allowed", after the name
/// that is probably meant.
pub(super) fn meant_or_allowed(text: &str, names: &[&str]) -> String {
    match nearest(text, names.iter().copied()) {
        Some(name) => format!("did you mean \"{name}\"? Allowed"),
        None => "allowed".to_owned(),
    }
}

/// Declares a table of proxy.toml: for each key its name, the type of its value,
/// its kind, its default, and in its doc comment the documentation that users
/// read. The first paragraph is what the shipped proxy.toml has. Options of
/// [`DeclaredKey`] may follow.
macro_rules! keys {
    (
        $(#[doc = $about:literal])*
        $visibility:vis struct $table:ident {
            $(
                $(#[doc = $doc:literal])*
                $key:ident $(($name:literal))?: $value:ty = $kind:expr => $default:expr
                    $(, $option:ident($($argument:expr),*))*;
            )*
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, Debug)]
        $visibility struct $table {
            $( pub(in crate::config) $key: $crate::config::key::Setting<$value>, )*
        }

        impl $crate::config::key::KeyTable for $table {
            fn table() -> &'static $crate::config::key::DeclaredTable {
                static TABLE: std::sync::OnceLock<$crate::config::key::DeclaredTable> =
                    std::sync::OnceLock::new();
                TABLE.get_or_init(|| $crate::config::key::DeclaredTable {
                    about: $crate::config::key::paragraphs(concat!($($about, "\n"),*)),
                    keys: vec![$({
                        let default: $value = $default;
                        $crate::config::key::DeclaredKey::new(
                            $crate::config::key::name!($key $($name)?),
                            concat!($($doc, "\n"),*),
                            &$kind,
                            &default,
                        )
                        $(.$option($($argument),*))*
                    }),*],
                })
            }

            fn defaults() -> Self {
                Self { $( $key: $crate::config::key::Setting::default($default) ),* }
            }

            fn read(
                path: &$crate::config::problem::Path<'_>,
                at: &$crate::config::problem::FileSpan,
                table: &toml::de::DeTable<'_>,
            ) -> Self {
                let declared = Self::table();
                $crate::config::key::check_names(path, at, table, declared);
                Self {
                    $( $key: $crate::config::key::read(
                        &$kind,
                        $default,
                        path,
                        table,
                        declared.key($crate::config::key::name!($key $($name)?)),
                    ) ),*
                }
            }

            fn inherit(&mut self, from: &Self) {
                $( $crate::config::key::Kind::inherit(&$kind, &mut self.$key, &from.$key); )*
            }
        }
    };
}

/// A key's name: that of its field, unless another is given.
macro_rules! name {
    ($key:ident $name:literal) => {
        $name
    };
    ($key:ident) => {
        stringify!($key)
    };
}

pub(super) use {keys, name};
