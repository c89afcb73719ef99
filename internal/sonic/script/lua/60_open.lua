
-- sonic_open zone others [prefix policy ..]: writes are taken from now on. The prefix '' is that of
-- all other keys.
redis.register_function('sonic_open', function(_, args)
	zone, alone = args[1], args[2] == '0'
	policies, default_policy = {}, 'l'
	for i = 3, #args, 2 do
		if args[i] == '' then
			default_policy = args[i + 1]
		else
			policies[#policies + 1] = {args[i], args[i + 1]}
		end
	end
	table.sort(policies, function(a, b) return #a[1] > #b[1] end)
	ready = true
	return redis.status_reply('OK')
end)
