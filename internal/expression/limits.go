package expression

import (
	"fmt"
	"regexp/syntax"
	"strings"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/functions"
	"github.com/google/cel-go/common/operators"
	"github.com/google/cel-go/common/overloads"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/google/cel-go/interpreter"
)

// CEL counts the cost of a call when it is over, and by the overload, which is not known before the
// evaluation where an argument is dyn: such a call costs 1, however long its texts are. So the cost
// of calls is counted here (costs), and calls that could take much by themselves are looked at
// before they are made (guards).

const (
	// maxText bounds the text that one call makes.
	maxText = 4 << 20
	// maxCompared bounds the values, inner ones included, that one comparison looks at.
	maxCompared = 100_000
	// maxRegex bounds a regular expression with its repetitions written out.
	maxRegex = 10_000
	// textPerCost is how many bytes of text cost 1.
	textPerCost = 64
)

// costs counts what a call costs by what it was given and what it made.
type costs struct{}

// CallCost implements interpreter.ActualCostEstimator.
func (costs) CallCost(function, overload string, args []ref.Val, result ref.Val) *uint64 {
	cost := uint64(1)
	switch function {
	case "matches", "contains":
		return nil // CEL knows: these have one overload each
	case operators.Equals, operators.NotEquals:
		cost += uint64(compared(args))
	case operators.In:
		cost += uint64(searched(args))
	case "join":
		cost += uint64(listed(args[0]))
	}
	longest := textOf(result)
	for _, arg := range args {
		longest = max(longest, textOf(arg))
	}
	cost += uint64(longest / textPerCost)
	return &cost
}

// textCosts has functions on texts cost as much as all others: the strings extension would count
// more than 1 for each byte, and refuse trim() of 100 KiB.
func textCosts() (all []interpreter.CostTrackerOption) {
	for function, overloads := range map[string][]string{
		"lowerAscii": {"string_lower_ascii"}, "upperAscii": {"string_upper_ascii"}, "trim": {"string_trim"}, "reverse": {"string_reverse"},
		"replace": {"string_replace_string_string", "string_replace_string_string_int"}, "join": {"list_join", "list_join_string"},
	} {
		for _, overload := range overloads {
			all = append(all, interpreter.OverloadCostTracker(overload, func(args []ref.Val, result ref.Val) *uint64 {
				return costs{}.CallCost(function, overload, args, result)
			}))
		}
	}
	return all
}

func textOf(v ref.Val) int {
	switch v := v.(type) {
	case types.String:
		return len(v)
	case types.Bytes:
		return len(v)
	}
	return 0
}

// guards makes a decorator that refuses calls whose result, or whose work, would be too large. The
// functions are those of env.
func guards(env *cel.Env) (interpreter.InterpretableDecorator, error) {
	does := map[string]functions.FunctionOp{ // by overload
		overloads.Equals:    func(args ...ref.Val) ref.Val { return types.Equal(args[0], args[1]) },
		overloads.NotEquals: func(args ...ref.Val) ref.Val { return types.Bool(types.Equal(args[0], args[1]) != types.True) },
	}
	checks := map[string]func(args []ref.Val) error{ // by function
		operators.Equals: few(compared), operators.NotEquals: few(compared), operators.In: few(searched),
		"join": checkJoin, "replace": checkReplace, "format": checkTexts, "json.encode": checkTexts, "matches": checkRegex,
	}
	all := env.Functions()
	for name := range checks {
		bindings, err := all[name].Bindings()
		if err != nil {
			return nil, err
		}
		for _, o := range bindings {
			switch {
			case o.Unary != nil:
				does[o.Operator] = func(args ...ref.Val) ref.Val { return o.Unary(args[0]) }
			case o.Binary != nil:
				does[o.Operator] = func(args ...ref.Val) ref.Val { return o.Binary(args[0], args[1]) }
			case o.Function != nil:
				does[o.Operator] = o.Function
			}
		}
	}
	return func(i interpreter.Interpretable) (interpreter.Interpretable, error) {
		call, ok := i.(interpreter.InterpretableCall)
		if !ok || checks[call.Function()] == nil {
			return i, nil
		}
		check, do := checks[call.Function()], does[call.OverloadID()]
		if do == nil {
			do = does[call.Function()] // one for all overloads
		}
		if do == nil {
			return nil, fmt.Errorf("%s() is not known with these arguments", call.Function())
		}
		return interpreter.NewCall(call.ID(), call.Function(), call.OverloadID(), call.Args(), func(args ...ref.Val) ref.Val {
			if err := check(args); err != nil {
				return types.WrapErr(err)
			}
			return do(args...)
		}), nil
	}, nil
}

// walk calls see for v and for all values in it, and stops when that returns false.
func walk(v ref.Val, see func(ref.Val) bool) bool {
	if !see(v) {
		return false
	}
	switch v := v.(type) {
	case traits.Mapper:
		for it := v.Iterator(); it.HasNext() == types.True; {
			key := it.Next()
			if value, ok := v.Find(key); !walk(key, see) || ok && !walk(value, see) {
				return false
			}
		}
	case traits.Lister:
		for it := v.Iterator(); it.HasNext() == types.True; {
			if !walk(it.Next(), see) {
				return false
			}
		}
	}
	return true
}

// compared returns how many values a comparison of two looks at, one more than maxCompared for more
// than that.
func compared(args []ref.Val) int {
	if !aggregate(args[0]) || !aggregate(args[1]) {
		return 1
	}
	return min(values(args[0]), values(args[1]))
}

// searched is compared for in.
func searched(args []ref.Val) int {
	if aggregate(args[0]) {
		return values(args[1])
	}
	return listed(args[1])
}

func aggregate(v ref.Val) bool {
	switch v.(type) {
	case traits.Mapper, traits.Lister:
		return true
	}
	return false
}

// values counts v and the values in it, up to maxCompared+1.
func values(v ref.Val) int {
	n := 0
	walk(v, func(ref.Val) bool { n++; return n <= maxCompared })
	return n
}

// listed is the length of a list, up to maxCompared+1.
func listed(v ref.Val) int {
	if l, ok := v.(traits.Lister); ok {
		if n, ok := l.Size().(types.Int); ok {
			return int(min(n, maxCompared+1))
		}
	}
	return 0
}

func few(count func(args []ref.Val) int) func(args []ref.Val) error {
	return func(args []ref.Val) error {
		if count(args) > maxCompared {
			return fmt.Errorf("more than %d values would be compared", maxCompared)
		}
		return nil
	}
}

func tooMuchText() error { return fmt.Errorf("a text of more than %d bytes would be made", maxText) }

// checkTexts is for what makes a text of all values in its arguments.
func checkTexts(args []ref.Val) error {
	const each = 32 // what a value takes besides its text
	n := 0
	for _, arg := range args {
		if !walk(arg, func(v ref.Val) bool { n += each + textOf(v); return n <= maxText }) {
			return tooMuchText()
		}
	}
	return nil
}

func checkJoin(args []ref.Val) error {
	each := 1
	if len(args) > 1 {
		each += textOf(args[1])
	}
	n := 0
	if listed(args[0]) > maxCompared || !walk(args[0], func(v ref.Val) bool { n += each + textOf(v); return n <= maxText }) {
		return tooMuchText()
	}
	return nil
}

func checkReplace(args []ref.Val) error {
	text, ok := args[0].(types.String)
	old, too := args[1].(types.String)
	if !ok || !too {
		return nil // no overload
	}
	if places := strings.Count(string(text), string(old)); len(text)+places*max(textOf(args[2])-len(old), 0) > maxText {
		return tooMuchText()
	}
	return nil
}

// checkRegex is for regular expressions that are not constant: those are looked at when the
// expression is compiled.
func checkRegex(args []ref.Val) error {
	if text, ok := args[1].(types.String); ok {
		return checkRegexText(string(text))
	}
	return nil
}

func checkRegexText(text string) error {
	if len(text) > maxRegex {
		return fmt.Errorf("the regular expression has more than %d bytes", maxRegex)
	}
	parsed, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil //nolint:nilerr // matches says so itself
	}
	if regexWeight(parsed) > maxRegex {
		return fmt.Errorf("the regular expression has more than %d parts with its repetitions written out", maxRegex)
	}
	return nil
}

// regexWeight is how many parts a regular expression has with its repetitions written out.
func regexWeight(r *syntax.Regexp) int {
	n := 1
	if r.Op == syntax.OpLiteral {
		n = len(r.Rune)
	} else {
		n += len(r.Rune) / 16 // of classes of characters
	}
	for _, sub := range r.Sub {
		n += regexWeight(sub)
	}
	if r.Op == syntax.OpRepeat {
		n *= max(r.Min, r.Max, 1)
	}
	return n
}
