//! Tables of tokens.

use std::time::Duration;

use super::*;

fn settings(text: &str) -> Settings {
    Settings {
        file: Some("t".into()),
        required: true,
        tokens: TokenFile::parse(text).unwrap().into(),
    }
}

fn numbers(table: &TokenTable) -> Vec<(String, u32)> {
    let names = table.names();
    names
        .map(|(name, number)| (name.name.to_string(), number))
        .collect()
}

#[test]
fn a_number_belongs_to_one_name_whatever_is_reloaded() {
    let line = |name: &str, n: u32| format!("{name} {n:064x}\n");
    let owned = |pairs: &[(&str, u32)]| -> Vec<_> {
        pairs
            .iter()
            .map(|(name, n)| ((*name).to_owned(), *n))
            .collect()
    };
    let first = TokenTable::new(&settings(&(line("a", 1) + &line("b", 2))));
    assert_eq!(numbers(&first), owned(&[("a", 0), ("b", 1)]));
    let second = first.next(&settings(&(line("c", 3) + &line("b", 4) + &line("b", 2))));
    assert_eq!(numbers(&second), owned(&[("c", 2), ("b", 1)]));
    let none = second.next(&Settings::default());
    assert!(!none.is_enabled() && !none.is_required());
    assert_eq!(numbers(&none), owned(&[]));
    let last = none.next(&settings(&(line("a", 1) + &line("d", 2))));
    assert_eq!(
        numbers(&last),
        owned(&[("a", 3), ("d", 4)]),
        "a has been gone"
    );
    assert!(last.generation() > second.generation());
}

#[test]
fn a_token_is_found_until_it_expires() {
    let (one, two) = (token::generate().unwrap(), token::generate().unwrap());
    let text = format!(
        "w {} expires=2027-01-31\nv {:064}\nw {}\n",
        one.digest, 0, two.digest
    );
    let table = TokenTable::new(&settings(&text));
    let at = |seconds| move || SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    let owner = |token: &token::NewToken, seconds| {
        let index = table.find(token.text.as_bytes())?;
        table.owner(index, at(seconds))
    };
    let found = Ok((NameIndex(0), 0));
    assert_eq!(owner(&one, 1_801_353_599), found);
    assert_eq!(owner(&one, 1_801_353_600), Err(TokenFault::Expired));
    assert_eq!(owner(&two, u32::MAX.into()), found);
    let unknown = token::generate().unwrap();
    assert_eq!(owner(&unknown, 0), Err(TokenFault::Unknown));
    assert_eq!(table.find(b"og_"), Err(TokenFault::Malformed));
    let expiries: Vec<_> = table.expiries(NameIndex(0)).collect();
    assert_eq!(expiries, [Some(at(1_801_353_600)()), None]);
}
