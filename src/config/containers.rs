//! The kinds of keys that hold other keys or several values: tables, tables with
//! names of the user's choice, lists.

use std::marker::PhantomData;

use serde_json::{Value as Json, json};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::key::{Inner, KeyTable, Kind, Setting, nearest, report_unknown};
use super::kinds::{received, report};
use super::problem::{FileSpan, Path};
use super::schema;

/// A table: `[key]`.
pub(super) struct Nested<K>(PhantomData<K>);

pub(super) const fn table<K>() -> Nested<K> {
    Nested(PhantomData)
}

impl<K: KeyTable> Kind for Nested<K> {
    type Value = K;

    fn allowed(&self) -> String {
        "a table".to_owned()
    }

    fn read(&self, path: &Path<'_>, value: &Spanned<DeValue<'_>>) -> Option<K> {
        let table = as_table(path, value)?;
        Some(K::read(path, &value.span(), table))
    }

    fn schema(&self) -> Json {
        schema::table(K::table())
    }

    fn inherit(&self, own: &mut Setting<K>, from: &Setting<K>) {
        own.value.inherit(&from.value);
    }

    fn inner(&self) -> Inner {
        Inner::Table(K::table)
    }
}

/// A table that may be left out, which has another meaning than an empty one.
pub(super) struct OptionalTable<K>(Nested<K>);

pub(super) const fn optional_table<K>() -> OptionalTable<K> {
    OptionalTable(table())
}

impl<K: KeyTable> Kind for OptionalTable<K> {
    type Value = Option<K>;

    fn allowed(&self) -> String {
        self.0.allowed()
    }

    fn read(&self, path: &Path<'_>, value: &Spanned<DeValue<'_>>) -> Option<Self::Value> {
        self.0.read(path, value).map(Some)
    }

    fn schema(&self) -> Json {
        self.0.schema()
    }

    fn inner(&self) -> Inner {
        Inner::Optional(K::table)
    }
}

/// The table that a value is, or a report that it is none.
fn as_table<'v, 't>(path: &Path<'_>, value: &'v Spanned<DeValue<'t>>) -> Option<&'v DeTable<'t>> {
    let table = value.get_ref().as_table();
    table.or_else(|| report(path, value, "a table"))
}

/// A table whose name the user chooses.
#[derive(Clone, Debug)]
pub(super) struct NamedTable<K> {
    pub(super) name: String,
    /// Where its name stands.
    pub(super) at: FileSpan,
    /// Whether it is not a table, which has been reported.
    pub(super) is_wrong: bool,
    pub(super) keys: K,
}

/// Tables whose names the user chooses: `[key.NAME]`.
pub(super) struct NamedTables<K> {
    /// What names match, as JSON Schema has it.
    pattern: &'static str,
    /// A name that no table may have.
    except: Option<&'static str>,
    /// A key that tables of this kind do not have here.
    without: Option<&'static str>,
    keys: PhantomData<K>,
}

pub(super) const fn named<K>(pattern: &'static str) -> NamedTables<K> {
    NamedTables {
        pattern,
        except: None,
        without: None,
        keys: PhantomData,
    }
}

impl<K> NamedTables<K> {
    /// No table may have this name.
    pub(super) const fn except(mut self, name: &'static str) -> Self {
        self.except = Some(name);
        self
    }

    /// The tables do not have this key.
    pub(super) const fn without(mut self, key: &'static str) -> Self {
        self.without = Some(key);
        self
    }
}

impl<K: KeyTable> Kind for NamedTables<K> {
    type Value = Vec<NamedTable<K>>;

    fn allowed(&self) -> String {
        "a table of tables".to_owned()
    }

    fn read(&self, path: &Path<'_>, value: &Spanned<DeValue<'_>>) -> Option<Self::Value> {
        let each = as_table(path, value)?.iter().map(|(name, value)| {
            let path = path.key(name.get_ref());
            let table = as_table(&path, value);
            if let Some(unknown) = self.without
                && let Some(at) = table.and_then(|table| table.get_key_value(unknown))
            {
                let keys = K::table().keys.iter().map(|key| key.name);
                let known: Vec<_> = keys.filter(|key| *key != unknown).collect();
                let meant = nearest(unknown, known.iter().copied());
                report_unknown(&path, &at.0.span(), unknown, meant, &known);
            }
            NamedTable {
                name: name.get_ref().to_string(),
                at: name.span(),
                is_wrong: table.is_none(),
                keys: table.map_or_else(K::defaults, |table| K::read(&path, &value.span(), table)),
            }
        });
        Some(each.collect())
    }

    fn schema(&self) -> Json {
        let mut table = schema::table(K::table());
        if let Some((unknown, properties)) = self.without.zip(table["properties"].as_object_mut()) {
            properties.remove(unknown);
        }
        let mut schema = json!({
            "type": "object",
            "propertyNames": {"pattern": self.pattern},
            "additionalProperties": table,
        });
        if let Some(name) = self.except {
            schema["properties"] = json!({name: false});
        }
        schema
    }

    fn inner(&self) -> Inner {
        Inner::Named(K::table)
    }
}

/// A list of tables: `[[key]]`.
pub(super) struct Tables<K>(PhantomData<K>);

pub(super) const fn tables<K>() -> Tables<K> {
    Tables(PhantomData)
}

impl<K: KeyTable> Kind for Tables<K> {
    /// Each with its place in the file.
    type Value = Vec<(FileSpan, K)>;

    fn allowed(&self) -> String {
        "tables".to_owned()
    }

    fn read(&self, path: &Path<'_>, value: &Spanned<DeValue<'_>>) -> Option<Self::Value> {
        let wrong = |value: &Spanned<DeValue<'_>>| {
            let allowed = format!("allowed are tables, each begun by [[{}]]", path.name());
            path.wrong(&value.span(), &received(value.get_ref()), &allowed);
        };
        let Some(list) = value.get_ref().as_array() else {
            wrong(value);
            return None;
        };
        let mut all_are_tables = true;
        let mut tables = Vec::new();
        for element in list.iter() {
            match element.get_ref().as_table() {
                Some(table) => tables.push((element.span(), K::read(path, &element.span(), table))),
                None => {
                    wrong(element);
                    all_are_tables = false;
                }
            }
        }
        all_are_tables.then_some(tables)
    }

    fn schema(&self) -> Json {
        json!({"type": "array", "items": schema::table(K::table())})
    }

    fn inner(&self) -> Inner {
        Inner::List(K::table)
    }
}

/// A list of values of one kind. Each that is not allowed is reported.
pub(super) struct ListOf<K>(K);

pub(super) const fn list<K>(kind: K) -> ListOf<K> {
    ListOf(kind)
}

impl<K: Kind> Kind for ListOf<K> {
    type Value = Vec<K::Value>;

    fn allowed(&self) -> String {
        format!("a list of strings, each {}", self.0.allowed())
    }

    fn read(&self, path: &Path<'_>, value: &Spanned<DeValue<'_>>) -> Option<Self::Value> {
        let Some(list) = value.get_ref().as_array() else {
            return report(path, value, &self.allowed());
        };
        let path = path.element();
        let read: Vec<_> = list.iter().map(|each| self.0.read(&path, each)).collect();
        read.into_iter().collect()
    }

    fn print(&self, value: &Self::Value) -> Option<String> {
        let each: Vec<_> = value.iter().filter_map(|each| self.0.print(each)).collect();
        Some(format!("[{}]", each.join(", ")))
    }

    fn schema(&self) -> Json {
        json!({"type": "array", "items": self.0.schema()})
    }
}

/// One value or a list of them.
pub(super) struct OneOrMore<K>(ListOf<K>);

pub(super) const fn one_or_more<K>(kind: K) -> OneOrMore<K> {
    OneOrMore(list(kind))
}

impl<K: Kind> Kind for OneOrMore<K> {
    type Value = Vec<K::Value>;

    fn allowed(&self) -> String {
        self.0.0.allowed()
    }

    fn read(&self, path: &Path<'_>, value: &Spanned<DeValue<'_>>) -> Option<Self::Value> {
        match value.get_ref().as_array() {
            Some(_) => self.0.read(path, value),
            None => Some(vec![self.0.0.read(path, value)?]),
        }
    }

    fn print(&self, value: &Self::Value) -> Option<String> {
        match &value[..] {
            [] => None,
            [one] => self.0.0.print(one),
            _ => self.0.print(value),
        }
    }

    fn schema(&self) -> Json {
        json!({"anyOf": [self.0.0.schema(), self.0.schema()]})
    }
}

/// A keyword, or tables whose names the user chooses.
pub(super) struct WordOr<K> {
    word: &'static str,
    tables: NamedTables<K>,
}

pub(super) const fn word_or<K>(word: &'static str, tables: NamedTables<K>) -> WordOr<K> {
    WordOr { word, tables }
}

impl<K: KeyTable> Kind for WordOr<K> {
    /// `None` is the keyword.
    type Value = Option<Vec<NamedTable<K>>>;

    fn allowed(&self) -> String {
        format!("\"{}\" or {}", self.word, self.tables.allowed())
    }

    fn read(&self, path: &Path<'_>, value: &Spanned<DeValue<'_>>) -> Option<Self::Value> {
        match value.get_ref().as_str() {
            Some(text) if text == self.word => Some(None),
            Some(_) => report(path, value, &self.allowed()),
            None => self.tables.read(path, value).map(Some),
        }
    }

    fn schema(&self) -> Json {
        json!({"anyOf": [{"const": self.word}, self.tables.schema()]})
    }

    fn inner(&self) -> Inner {
        self.tables.inner()
    }
}

/// A table whose keys are the user's to choose, with values of one kind.
pub(super) struct Entries<K> {
    pub(super) value: K,
    pub(super) allowed: &'static str,
    /// What keys match, as JSON Schema has it.
    pub(super) pattern: &'static str,
    pub(super) is_key: fn(&str) -> bool,
}

impl<K: Kind> Kind for Entries<K> {
    type Value = Vec<(String, K::Value)>;

    fn allowed(&self) -> String {
        "a table".to_owned()
    }

    fn read(&self, path: &Path<'_>, value: &Spanned<DeValue<'_>>) -> Option<Self::Value> {
        let (mut entries, mut is_wrong) = (Vec::new(), false);
        for (key, value) in as_table(path, value)? {
            let path = path.key(key.get_ref());
            if !(self.is_key)(key.get_ref()) {
                path.problem(&key.span(), format!("is unknown; {}", self.allowed));
                is_wrong = true;
            } else if let Some(value) = self.value.read(&path, value) {
                entries.push((key.get_ref().to_string(), value));
            } else {
                is_wrong = true;
            }
        }
        (!is_wrong).then_some(entries)
    }

    fn schema(&self) -> Json {
        json!({
            "type": "object",
            "propertyNames": {"pattern": self.pattern},
            "additionalProperties": self.value.schema(),
        })
    }
}
