
-- What each effect does: function(effect, v), with effect = {op, policy, db, key, ..}. See docs/sonic-replication.md
-- for the table of effects. It returns 'applied', 'lost', 'dead' or 'diverged'.
local effects = {}

-- by_policy returns what applies an effect by the function of that name: of lww, or of unversioned. letter is the type
-- of elements.
local function by_policy(name, letter)
	return function(e, v) return (e[2] == 'l' and lww or unversioned)[name](e, v, letter) end
end

effects.S, effects.R, effects.D = by_policy('wholesale'), by_policy('wholesale'), by_policy('wholesale')
effects.L, effects.E = by_policy('operate'), by_policy('expire')
effects.H, effects.A, effects.Z = by_policy('add', 'h'), by_policy('add', 's'), by_policy('add', 'z')
effects.h, effects.a, effects.z = by_policy('remove', 'h'), by_policy('remove', 's'), by_policy('remove', 'z')
effects.I, effects.i, effects.j = unversioned.count, unversioned.count, unversioned.count

function effects.P(e)
	call('PUBLISH', e[4], e[5])
	return 'applied'
end
