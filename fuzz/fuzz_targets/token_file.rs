//! Token files: what is read has as many tokens as lines, with any line ends; a problem has
//! the line and the column where it is, and quotes nothing of the file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use ordgate::client_tokens::TokenFile;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let windows = text.replace("\r\n", "\n").replace('\n', "\r\n");
    match TokenFile::parse(text) {
        Ok(file) => {
            let is_token = |line: &&str| {
                let line = line.trim_matches([' ', '\t']);
                !line.is_empty() && !line.starts_with('#')
            };
            assert_eq!(file.tokens.len(), text.lines().filter(is_token).count());
            assert!(file.names.len() <= file.tokens.len());
            assert_eq!(TokenFile::parse(&windows), Ok(file));
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            let said: Vec<_> = problems.iter().map(|problem| problem.of_file("")).collect();
            for said in &said {
                let mut parts = said.splitn(4, ':').skip(1);
                let mut number = || parts.next().unwrap().parse::<usize>().unwrap();
                let (line, column) = (number(), number());
                let line = text.lines().nth(line - 1).unwrap();
                assert!(column <= line.chars().count() + 1, "{said}");
                // A word that long can be a token or a digest.
                let words = line.split([' ', '\t', '=', ',']);
                let secrets = words.filter(|word| word.len() >= 40);
                for secret in secrets {
                    assert!(!said.contains(secret), "{said}");
                }
            }
            let again = TokenFile::parse(&windows).unwrap_err();
            assert_eq!(again, problems);
        }
    }
});
