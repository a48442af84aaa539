//! proxy.toml: every problem has its place in the file, and what is read can be
//! printed and read again.

#![no_main]

use ordgate::config::Config;
use ordgate::upstream::ProviderKeys;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let Ok(text) = str::from_utf8(input) else {
        return;
    };
    let keys = ProviderKeys::default();
    match Config::parse("f", text) {
        Ok(config) => {
            let printed = config.print(&keys).expect("what is read can be printed");
            match Config::parse("printed", &printed) {
                Ok(again) => assert_eq!(again.print(&keys).as_ref(), Ok(&printed)),
                Err(problems) => panic!("{problems:?}\n{printed}"),
            }
        }
        Err(problems) => {
            assert!(!problems.is_empty());
            for problem in problems {
                let line = problem.line.checked_sub(1);
                let line = line.and_then(|line| text.split('\n').nth(line));
                let line = line.unwrap_or_else(|| panic!("{problem} is beyond the file"));
                let characters = line.chars().count();
                assert!((1..=characters + 1).contains(&problem.column), "{problem}");
                assert!(!problem.message.is_empty());
                assert_eq!(problem.file, "f");
            }
        }
    }
});
