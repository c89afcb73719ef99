package resp

import (
	"strconv"
	"strings"
)

// Words splits an inline command, or another text that Redis reads in the same way, as Redis'
// sdssplitargs does: words are separated by spaces, "quoted with \x00 escapes" or 'quoted plainly'.
// A space or the end must follow a closing quote. As in C, the text ends at a zero byte. ok is false
// if quotes are not balanced.
func Words(text []byte) (words [][]byte, ok bool) {
	for i := 0; ; {
		for i < len(text) && isSpace(text[i]) {
			i++
		}
		if i >= len(text) || text[i] == 0 {
			return words, true
		}
		var word []byte
		if word, i, ok = nextWord(text, i); !ok {
			return nil, false
		}
		words = append(words, word)
	}
}

// nextWord reads the word at i. A quoted part may begin within the word.
func nextWord(text []byte, i int) (word []byte, next int, ok bool) {
	word = []byte{}
	for i < len(text) && text[i] != 0 && !isSpace(text[i]) {
		switch text[i] {
		case '"', '\'':
			if word, i, ok = quoted(word, text, i); !ok {
				return nil, 0, false
			}
			return word, i, i >= len(text) || text[i] == 0 || isSpace(text[i])
		default:
			word = append(word, text[i])
			i++
		}
	}
	return word, i, true
}

// quoted appends the text between the quote at i and the closing quote, and returns the position
// after that.
func quoted(word, text []byte, i int) ([]byte, int, bool) {
	quote := text[i]
	for i++; i < len(text) && text[i] != 0; i++ {
		c := text[i]
		switch {
		case c == quote:
			return word, i + 1, true
		case c != '\\' || i+1 >= len(text):
			word = append(word, c)
		case quote == '\'':
			if text[i+1] == '\'' {
				i++
				c = '\''
			}
			word = append(word, c)
		case text[i+1] == 0:
			word = append(word, c)
		default:
			c, size := escaped(text[i+1:])
			word = append(word, c)
			i += size
		}
	}
	return nil, 0, false
}

// escaped returns what the text behind a backslash stands for, and how many bytes of it that takes.
func escaped(text []byte) (c byte, size int) {
	if text[0] == 'x' && len(text) > 2 {
		if n, err := strconv.ParseUint(string(text[1:3]), 16, 8); err == nil {
			return byte(n), 3
		}
	}
	if i := strings.IndexByte("nrtba", text[0]); i >= 0 {
		return "\n\r\t\b\a"[i], 1
	}
	return text[0], 1
}

func isSpace(c byte) bool { return c == ' ' || '\t' <= c && c <= '\r' }
