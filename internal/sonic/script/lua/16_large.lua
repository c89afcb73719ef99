
-- Effects have a bound, or a write would be executed here that no other zone can learn of: 4 GiB is what the length
-- of a packed string has room for. Arguments of a client are far below. A command that makes a key anew from other
-- keys is refused beyond half of it, before it runs.
local LARGEST = 2147483648

-- too_large returns the error of command, which copies keys, when the keys among args take more than LARGEST, or the
-- outbox is full. Other arguments name no keys, mostly.
local function too_large(command, args)
	local refusal = refuse_or_drop(true)
	if refusal then return refusal end
	local function size(...)
		local sum = 0
		for i = 2, #args do
			local n = try('MEMORY', 'USAGE', args[i], ...)
			if type(n) == 'number' then sum = sum + n end
		end
		return sum
	end
	if size() < LARGEST / 4 then return nil end -- it looks at some elements of each key only
	local n = size('SAMPLES', '0')
	if n < LARGEST then return nil end
	return {err = format('SONICREFUSED %s of keys that take %.0f bytes: an effect may have %.0f', command, n, LARGEST)}
end
