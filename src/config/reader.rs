//! Reads TOML tables key by key, and gathers all that is wrong with them, each
//! with its place, rather than the first thing alone.
//!
//! Deliberately absent: quoting of lines in messages. A secret that was put in
//! the file by mistake would get into a log.

use std::cell::RefCell;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::units;

/// Something that is wrong with a file, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file's name.
    pub file: String,
    /// From 1.
    pub line: usize,
    /// In characters, from 1.
    pub column: usize,
    /// What came, what is allowed.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}:{}: {}",
            self.file, self.line, self.column, self.message
        )
    }
}

/// Where problems gather.
pub(super) struct Problems<'s> {
    file: &'s str,
    source: &'s str,
    found: RefCell<Vec<(usize, String)>>,
}

impl<'s> Problems<'s> {
    /// None yet, in a file of this name and text.
    pub(super) fn new(file: &'s str, source: &'s str) -> Self {
        Self {
            file,
            source,
            found: RefCell::default(),
        }
    }

    /// Adds one.
    pub(super) fn add(&self, at: &Range<usize>, message: impl Into<String>) {
        self.found.borrow_mut().push((at.start, message.into()));
    }

    /// All of them, in the file's order.
    pub(super) fn into_list(self) -> Vec<Problem> {
        let mut found = self.found.into_inner();
        found.sort();
        found.dedup();
        let place = |(offset, message): (usize, String)| {
            let before = &self.source[..offset.min(self.source.len())];
            let line_start = before.rfind('\n').map_or(0, |at| at + 1);
            Problem {
                file: self.file.to_owned(),
                line: before.matches('\n').count() + 1,
                column: before[line_start..].chars().count() + 1,
                message,
            }
        };
        found.into_iter().map(place).collect()
    }
}

/// A value with its place.
pub(super) type Placed<T> = (T, Range<usize>);

/// A table that is being read. Keys that nobody asked for are unknown.
pub(super) struct Table<'t> {
    problems: &'t Problems<'t>,
    path: String,
    table: Option<&'t DeTable<'t>>,
    span: Range<usize>,
    asked: RefCell<Vec<&'static str>>,
}

impl<'t> Table<'t> {
    /// The table that a file is.
    pub(super) fn root(problems: &'t Problems<'t>, root: &'t Spanned<DeTable<'t>>) -> Self {
        Self {
            problems,
            path: String::new(),
            table: Some(root.get_ref()),
            span: root.span(),
            asked: RefCell::default(),
        }
    }

    /// Where it is.
    pub(super) fn span(&self) -> &Range<usize> {
        &self.span
    }

    /// Whether the file has it at all.
    pub(super) fn is_there(&self) -> bool {
        self.table.is_some()
    }

    /// Adds a problem at a place.
    pub(super) fn problem(&self, at: &Range<usize>, message: impl Into<String>) {
        self.problems.add(at, message);
    }

    /// A key's full name.
    pub(super) fn name(&self, key: &str) -> String {
        match self.path.is_empty() {
            true => key.to_owned(),
            false => format!("{}.{key}", self.path),
        }
    }

    /// Whether it has a key, readable or not: what is there and is wrong has
    /// been told already.
    pub(super) fn has(&self, key: &str) -> bool {
        self.table.is_some_and(|table| table.contains_key(key))
    }

    fn value(&self, key: &'static str) -> Option<&'t Spanned<DeValue<'t>>> {
        let mut asked = self.asked.borrow_mut();
        if !asked.contains(&key) {
            asked.push(key);
        }
        self.table?.get(key)
    }

    /// Reads a value, or says what is allowed in its place.
    fn read<T>(
        &self,
        key: &'static str,
        allowed: &str,
        read: impl FnOnce(&DeValue<'t>) -> Option<T>,
    ) -> Option<Placed<T>> {
        let value = self.value(key)?;
        match read(value.get_ref()) {
            Some(read) => Some((read, value.span())),
            None => {
                let name = self.name(key);
                let came = came(value.get_ref());
                self.problem(
                    &value.span(),
                    format!("{name} is {came}; allowed is {allowed}"),
                );
                None
            }
        }
    }

    /// Whether a key has a string, without asking what it says.
    pub(super) fn is_string(&self, key: &str) -> bool {
        let value = self.table.and_then(|table| table.get(key));
        value.is_some_and(|value| value.get_ref().is_str())
    }

    /// Any string.
    pub(super) fn string(&self, key: &'static str) -> Option<Placed<String>> {
        self.read(key, "a string", |value| value.as_str().map(str::to_owned))
    }

    /// A string that means something.
    pub(super) fn parsed<T>(
        &self,
        key: &'static str,
        allowed: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Option<Placed<T>> {
        self.read(key, allowed, |value| value.as_str().and_then(parse))
    }

    /// `true` or `false`.
    pub(super) fn boolean(&self, key: &'static str, default: bool) -> bool {
        let read = self.read(key, "true or false", DeValue::as_bool);
        read.map_or(default, |(value, _)| value)
    }

    /// A whole number within bounds.
    pub(super) fn integer(&self, key: &'static str, bounds: RangeInclusive<u64>) -> Option<u64> {
        let allowed = format!("a whole number from {} to {}", bounds.start(), bounds.end());
        let read = self.read(key, &allowed, |value| {
            let number = integer(value)?;
            bounds.contains(&number).then_some(number)
        });
        read.map(|(value, _)| value)
    }

    /// A whole number within bounds, or a word that stands for none:
    /// `Some(None)`.
    pub(super) fn integer_or(
        &self,
        key: &'static str,
        bounds: RangeInclusive<u64>,
        word: &str,
    ) -> Option<Option<u64>> {
        let allowed = format!(
            "a whole number from {} to {}, or \"{word}\"",
            bounds.start(),
            bounds.end()
        );
        let read = self.read(key, &allowed, |value| {
            if value.as_str() == Some(word) {
                return Some(None);
            }
            integer(value).filter(|n| bounds.contains(n)).map(Some)
        });
        read.map(|(value, _)| value)
    }

    /// A duration within bounds.
    pub(super) fn duration(
        &self,
        key: &'static str,
        bounds: RangeInclusive<Duration>,
        default: Duration,
    ) -> Duration {
        let allowed = format!(
            "{}, from {} to {}",
            units::DURATION,
            units::format(*bounds.start()),
            units::format(*bounds.end())
        );
        let read = |text: &str| units::parse(text).filter(|time| bounds.contains(time));
        self.parsed(key, &allowed, read)
            .map_or(default, |(value, _)| value)
    }

    /// A size within bounds, as a string with a unit or as bytes.
    pub(super) fn size(&self, key: &'static str, bounds: RangeInclusive<u64>, default: u64) -> u64 {
        let allowed = format!(
            "{}, from {} to {}",
            units::SIZE,
            units::format_size(*bounds.start()),
            units::format_size(*bounds.end())
        );
        let read = self.read(key, &allowed, |value| {
            let bytes = value
                .as_str()
                .map_or_else(|| integer(value), units::parse_size);
            bytes.filter(|bytes| bounds.contains(bytes))
        });
        read.map_or(default, |(value, _)| value)
    }

    /// One of some names.
    pub(super) fn one_of<T: Copy>(&self, key: &'static str, names: &[(&str, T)]) -> Option<T> {
        let allowed = format!("one of {}", list(names.iter().map(|(name, _)| *name)));
        let read = |text: &str| {
            names
                .iter()
                .find(|(name, _)| *name == text)
                .map(|(_, value)| *value)
        };
        self.parsed(key, &allowed, read).map(|(value, _)| value)
    }

    /// A list of strings that each mean something; `None` where there is no
    /// such key.
    pub(super) fn strings<T>(
        &self,
        key: &'static str,
        allowed: &str,
        parse: impl Fn(&str) -> Option<T>,
    ) -> Option<Vec<T>> {
        let (elements, _) = self.read(
            key,
            &format!("a list of strings, each {allowed}"),
            |value| {
                let placed = |element: &Spanned<DeValue<'t>>| {
                    let value = element.get_ref().as_str().and_then(&parse);
                    (value.ok_or_else(|| came(element.get_ref())), element.span())
                };
                Some(value.as_array()?.iter().map(placed).collect::<Vec<_>>())
            },
        )?;
        let mut values = Vec::new();
        for (read, span) in elements {
            match read {
                Ok(value) => values.push(value),
                Err(came) => self.problem(
                    &span,
                    format!("{} has {came}; allowed is {allowed}", self.name(key)),
                ),
            }
        }
        Some(values)
    }

    /// A table within this one, empty where it is absent.
    pub(super) fn table(&self, key: &'static str) -> Self {
        let read = self.value(key).and_then(|value| {
            let table = value.get_ref().as_table();
            if table.is_none() {
                let came = came(value.get_ref());
                let message = format!("{} is {came}; allowed is a table", self.name(key));
                self.problem(&value.span(), message);
            }
            Some((table?, value.span()))
        });
        self.inner(key, read)
    }

    /// The tables of a list of tables; `None` where there is no such key.
    pub(super) fn tables(&self, key: &'static str) -> Option<Vec<Self>> {
        let value = self.value(key)?;
        let wrong = |value: &Spanned<DeValue<'t>>| {
            let came = came(value.get_ref());
            let message = format!(
                "{} is {came}; allowed are tables, each begun by [[{key}]]",
                self.name(key)
            );
            self.problem(&value.span(), message);
        };
        let Some(list) = value.get_ref().as_array() else {
            wrong(value);
            return Some(Vec::new());
        };
        let mut tables = Vec::new();
        for element in list.iter() {
            match element.get_ref().as_table() {
                Some(table) => tables.push(self.inner(key, Some((table, element.span())))),
                None => wrong(element),
            }
        }
        Some(tables)
    }

    /// All tables within this one, by their names, which are the user's to
    /// choose. One that is no table is told, and empty.
    pub(super) fn named_tables(&self) -> Vec<(Placed<String>, Self)> {
        let entries = self.table.into_iter().flat_map(|table| table.iter());
        let mut tables = Vec::new();
        for (key, value) in entries {
            let name = key.get_ref().to_string();
            let table = value.get_ref().as_table();
            if table.is_none() {
                let came = came(value.get_ref());
                let message = format!("{} is {came}; allowed is a table", self.name(&name));
                self.problem(&value.span(), message);
            }
            let inner = self.inner(&name, table.map(|table| (table, value.span())));
            tables.push(((name, key.span()), inner));
        }
        tables
    }

    /// All entries of this table, whose keys are the user's to choose, with
    /// string values.
    pub(super) fn entries(&self) -> Vec<(Placed<String>, Placed<String>)> {
        let entries = self.table.into_iter().flat_map(|table| table.iter());
        let mut strings = Vec::new();
        for (key, value) in entries {
            let name = key.get_ref().to_string();
            match value.get_ref().as_str() {
                Some(text) => strings.push(((name, key.span()), (text.to_owned(), value.span()))),
                None => {
                    let came = came(value.get_ref());
                    self.problem(
                        &value.span(),
                        format!("{} is {came}; allowed is a string", self.name(&name)),
                    );
                }
            }
        }
        strings
    }

    fn inner(&self, key: &str, table: Option<(&'t DeTable<'t>, Range<usize>)>) -> Self {
        let (table, span) = match table {
            Some((table, span)) => (Some(table), span),
            None => (None, self.span.clone()),
        };
        Self {
            problems: self.problems,
            path: self.name(key),
            table,
            span,
            asked: RefCell::default(),
        }
    }

    /// Says which keys nobody has asked for.
    pub(super) fn finish(self) {
        let asked = self.asked.borrow();
        let Some(table) = self.table else { return };
        for (key, _) in table {
            let name: &str = key.get_ref();
            if asked.contains(&name) {
                continue;
            }
            let full = self.name(name);
            let hint = match name.contains("api_key")
                || name.contains("token")
                || name.contains("secret")
            {
                true => {
                    "; secrets do not stand in this file: they come from ORDGATE_API_KEYS and ORDGATE_ADMIN_TOKEN, or from files of their own"
                }
                false => "",
            };
            let message = format!(
                "unknown key {full}; allowed are {}{hint}",
                list(asked.iter().copied())
            );
            self.problem(&key.span(), message);
        }
    }
}

fn integer(value: &DeValue<'_>) -> Option<u64> {
    let integer = value.as_integer()?;
    u64::from_str_radix(integer.as_str(), integer.radix()).ok()
}

/// What came in place of what is allowed, for messages.
fn came(value: &DeValue<'_>) -> String {
    match value {
        DeValue::String(text) => format!("\"{}\"", text.chars().take(60).collect::<String>()),
        DeValue::Integer(number) => number.as_str().to_owned(),
        DeValue::Float(number) => number.as_str().to_owned(),
        DeValue::Boolean(value) => value.to_string(),
        DeValue::Datetime(_) => "a date".to_owned(),
        DeValue::Array(_) => "a list".to_owned(),
        DeValue::Table(_) => "a table".to_owned(),
    }
}

fn list<'n>(names: impl Iterator<Item = &'n str>) -> String {
    names.collect::<Vec<_>>().join(", ")
}
