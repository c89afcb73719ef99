package transform

import (
	"errors"
	"fmt"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"

	"github.com/aviaryhq/aviary/internal/expression"
)

func compileFilter(env *cel.Env, source string) (cel.Program, error) {
	return expression.Compile(env, source, "true or false", nil, cel.BoolType)
}

func compileSet(env *cel.Env, source string) (cel.Program, error) {
	return expression.Compile(env, source, "a string, bytes or null (string(...) makes a string of other types)", nil, cel.StringType, cel.BytesType, cel.NullType,
		cel.NullableType(cel.StringType), cel.NullableType(cel.BytesType))
}

// setResult returns the result of an expression of Set; nil is null.
func setResult(out ref.Val) ([]byte, error) {
	switch out := out.(type) {
	case types.String:
		return []byte(out), nil
	case types.Bytes:
		if out == nil {
			return []byte{}, nil
		}
		return out, nil
	case types.Null:
		return nil, nil
	}
	return nil, fmt.Errorf("the result must be a string, bytes or null, got %s", out.Type().TypeName())
}

var errNotBool = errors.New("the result must be true or false")
